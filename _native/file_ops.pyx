"""The file seam for Python: what is written rarely (snapshots, removals) goes through the same table of functions as the log (see files.pxd)."""

import os

from libc.errno cimport EEXIST, ENOENT, EXDEV
from libc.stdint cimport int64_t, uint64_t, uint8_t
from posix.fcntl cimport O_CREAT, O_RDWR, O_TRUNC
from posix.uio cimport iovec

from topicsd._native.files cimport FileSystem


cdef int checked(int64_t result, path) except -1:
    if result < 0:
        raise OSError(<int>-result, os.strerror(<int>-result), path)
    return 0


cdef class NewFile:
    """A file that is written from front to back, synced, and only then gets its name. The calls let go of the GIL."""

    cdef FileSystem files
    cdef bytes path, temporary
    cdef int fd
    cdef readonly uint64_t size

    def __cinit__(self, FileSystem files not None, path):
        self.files = files
        self.path = os.fsencode(path)
        self.temporary = self.path + b".tmp"
        self.fd = files.table.open(files.table.context, self.temporary, O_RDWR | O_CREAT | O_TRUNC, 0o640)
        checked(self.fd, path)

    def __dealloc__(self):
        if self.fd >= 0:
            os.close(self.fd)

    def write(self, part not None):
        """Write bytes, or anything that shows its bytes, at the end."""
        cdef iovec one
        cdef int64_t result
        cdef const uint8_t[::1] shown = part
        one.iov_len = shown.shape[0]
        if one.iov_len == 0:
            return
        one.iov_base = <void *>&shown[0]
        with nogil:
            result = self.files.table.pwritev(self.files.table.context, self.fd, &one, 1, self.size)
        checked(result, self.path)
        self.size += one.iov_len

    def finish(self):
        """Sync it, give it its name, sync the folder."""
        cdef int64_t result
        cdef bytes folder = os.path.dirname(self.path)
        cdef const char *old_name = self.temporary
        cdef const char *new_name = self.path
        cdef const char *above = folder
        with nogil:
            result = self.files.table.fsync(self.files.table.context, self.fd)
            if result >= 0:
                result = self.files.table.close(self.files.table.context, self.fd)
                self.fd = -1
            if result >= 0:
                result = self.files.table.rename(self.files.table.context, old_name, new_name)
            if result >= 0:
                result = self.files.table.sync_directory(self.files.table.context, above)
        checked(result, self.path)

    def abort(self):
        """Give it up."""
        if self.fd >= 0:
            self.files.table.close(self.files.table.context, self.fd)
            self.fd = -1
        self.files.table.unlink(self.files.table.context, self.temporary)


def make_folder(FileSystem files not None, path):
    """Make one folder and sync the one above it; again is no harm."""
    cdef bytes name = os.fsencode(path), above = os.path.dirname(os.fsencode(path))
    cdef int64_t result = files.table.mkdir(files.table.context, name, 0o755)
    if result != -EEXIST:
        checked(result, path)
    checked(files.table.sync_directory(files.table.context, above), path)


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
        checked(files.table.sync_directory(files.table.context, <bytes>os.path.dirname(new_name)), new_path)
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
