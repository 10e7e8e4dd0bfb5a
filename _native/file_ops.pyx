"""The file seam for Python: what is written rarely (snapshots, removals) goes through the same table of functions as the log (see files.pxd)."""

import os

from libc.errno cimport EEXIST, ENOENT, ENOSYS, EOPNOTSUPP, EXDEV
from libc.stdint cimport int64_t, uint64_t, uint8_t
from libc.stdlib cimport free

from topicsd._native.files cimport FileSystem
from topicsd._native.segment_sink cimport SINK_BUFFER_BYTES, Sink, sink_close, sink_end, sink_go_direct, sink_open_as, sink_put


cdef int checked(int64_t result, path) except -1:
    if result < 0:
        raise OSError(<int>-result, os.strerror(<int>-result), path)
    return 0


cdef bytes above(bytes path):
    """The folder that a path stands in."""
    return os.path.dirname(path) or b"."


cdef class NewFile:
    """A file that is written from front to back, synced, and only then gets its name. The calls let go of the GIL.

    A large one goes past the page cache where the file system can (direct_io.pxd): nobody is about to read it.
    """

    cdef FileSystem files
    cdef bytes path, temporary
    cdef Sink sink
    cdef bint large

    def __cinit__(self, FileSystem files not None, path):
        self.sink.fd = self.sink.direct_fd = -1
        self.files = files
        self.path = os.fsencode(path)
        self.temporary = self.path + b".tmp"
        checked(sink_open_as(&self.sink, &files.table, self.temporary, 0o640), path)

    def __dealloc__(self):
        if self.sink.direct_fd >= 0:
            os.close(self.sink.direct_fd)
        if self.sink.fd >= 0:
            os.close(self.sink.fd)
        free(self.sink.buffer)

    @property
    def size(self):
        """How many bytes it has got."""
        return sink_end(&self.sink)

    def write(self, part not None):
        """Write bytes, or anything that shows its bytes, at the end."""
        cdef int64_t result
        cdef const char *name = self.temporary
        cdef const uint8_t[::1] shown = part
        cdef uint64_t count = shown.shape[0]
        if count == 0:
            return
        with nogil:
            if not self.large and sink_end(&self.sink) + count > <uint64_t>SINK_BUFFER_BYTES:
                self.large = True
                sink_go_direct(&self.sink, name)
            result = sink_put(&self.sink, &shown[0], count)
        checked(result, self.path)

    def reserve(self, uint64_t count):
        """Have `count` bytes of room in it, zeroes to a reader."""
        cdef int64_t result
        cdef bytes zeroes
        with nogil:
            result = self.files.table.fallocate(self.files.table.context, self.sink.fd, 0, count)
        if result == -EOPNOTSUPP or result == -ENOSYS:
            zeroes = bytes(SINK_BUFFER_BYTES)
            while self.size < count:
                self.write(zeroes[:count - self.size])
        else:
            checked(result, self.path)

    def finish(self):
        """Sync it, give it its name, sync the folder."""
        cdef int64_t result
        cdef bytes folder = above(self.path)
        cdef const char *old_name = self.temporary
        cdef const char *new_name = self.path
        cdef const char *folder_name = folder
        with nogil:
            result = sink_close(&self.sink, True)
            if result >= 0:
                result = self.files.table.rename(self.files.table.context, old_name, new_name)
            if result >= 0:
                result = self.files.table.sync_directory(self.files.table.context, folder_name)
        checked(result, self.path)

    def abort(self):
        """Give it up."""
        sink_close(&self.sink, False)
        self.files.table.unlink(self.files.table.context, self.temporary)


def make_folder(FileSystem files not None, path):
    """Make one folder and sync the one above it; again is no harm."""
    cdef bytes name = os.fsencode(path)
    cdef int64_t result = files.table.mkdir(files.table.context, name, 0o755)
    if result != -EEXIST:
        checked(result, path)
    checked(files.table.sync_directory(files.table.context, <bytes>above(name)), path)


def remove(FileSystem files not None, path):
    """Remove a file; one that is not there is no error."""
    cdef bytes name = os.fsencode(path)
    cdef int64_t result = files.table.unlink(files.table.context, name)
    if result != -ENOENT:
        checked(result, path)


def move(FileSystem files not None, path, new_path):
    """Rename a file."""
    checked(files.table.rename(files.table.context, os.fsencode(path), os.fsencode(new_path)), path)


def move_across(FileSystem files not None, path, new_path):
    """Rename a file, or copy and then remove it where the two stand on different file systems."""
    cdef bytes old_name = os.fsencode(path), new_name = os.fsencode(new_path)
    cdef int64_t result = files.table.rename(files.table.context, old_name, new_name)
    if result != -EXDEV:
        checked(result, path)
        checked(files.table.sync_directory(files.table.context, <bytes>above(new_name)), new_path)
        return
    copy = NewFile(files, new_path)
    try:
        with open(path, "rb") as source:
            while part := source.read(1 << 20):
                copy.write(part)
        copy.finish()
    except OSError:
        copy.abort()
        raise
    remove(files, path)
