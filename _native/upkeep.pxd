# The keeper's look at the segment-file table and at the rows that lead into it, and the writer's hand when a row is to lead elsewhere.
#
#   listed    every file that is alive: what a scrub reads, what is no orphan
#   tally     live records, live bytes and seqs by file, over all topics: which files are mostly dead
#   ranges    the rows that lead into one file, with what is deleted in them: what a rewrite keeps
#   suspects  the files that a read has found damaged (MET), or of which the keeper knows it (TRUE)
#   unreadable  what of a file's live records a reader is told as `corrupt`, by topic: reads and counts agree
#   dead_rows   the rows that lead into a file and have no live record left: what may be dropped
#   all_deleted  whether every seq of such a row is deleted, by its index and its marks: none is lost, or unknown
#   let_go    (writer) such a row leads nowhere any more; its file loses a row, and is retired with its last one
#   replace   (writer) a row leads into another file that holds the same range; the old file loses a row, and is retired with its last one
#
# word                  written by   order                          a stale read means
# segment_file          writer       see sealed.pxd                 a file that has gone meanwhile is looked for: its reader finds none
# a row, its marks      writer       under the slot's lock          tally: a number of a moment ago. ranges: taken again, or left out. A delete
#                                                                   that is missed stands in the row's marks, and those stay when it is replaced
#
# Owner: a call. Nothing is kept.
from libc.stdint cimport uint32_t, uint64_t

cdef struct Dead:        # of one file, over the rows that lead into it
    uint64_t live, live_bytes, seqs
