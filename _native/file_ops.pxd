# What is written rarely (snapshots, removals), through the same table of functions as the log (files.pxd).
#
# Owner: whoever calls; a NewFile belongs to one thread. No shared word.
