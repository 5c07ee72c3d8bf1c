"""Every key below a storage root, where runs and evaluations store their results.

Keys are relative and use `/`. Keys of tables, files and folders are defined only in this package. What an iteration or an
evaluation makes lies below the epoch that made it, so that two processes never write the same key; results and records name
what counts.
"""
