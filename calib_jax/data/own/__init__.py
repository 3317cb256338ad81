"""Data of the user's own: arrays, folders of images, tables of texts."""
