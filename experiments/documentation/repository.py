"""The address of the repository: the one place where it stands. Empty: there is none yet."""

REPOSITORY = ""  # such as "https://HOST/OWNER/NAME", without a slash at the end
