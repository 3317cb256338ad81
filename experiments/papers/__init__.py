"""Every claim of the five sources, tested: claims, entries that test them, and verdicts.

An entry is a file entries/SOURCE/TOPIC.py with an ENTRY; `entry.py` describes it. The other files
read the claims and the published numbers, find or train the runs, judge, and write the verdicts.
"""
