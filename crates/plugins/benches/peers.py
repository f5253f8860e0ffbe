"""Codes the beginning of a file with zlib and Google's brotli, for the bench "bodies". Arguments: the file, bytes."""

import ctypes
import ctypes.util
import sys
import time
import zlib

RUNS = 40
BODIES = 10


def gzip(level, body):
    coder = zlib.compressobj(level, zlib.DEFLATED, 31)
    return len(coder.compress(body) + coder.flush())


def brotli(library, level, body):
    """As nginx's module calls it: its window as configured by default, and no length."""
    library.BrotliEncoderCreateInstance.restype = ctypes.c_void_p
    state = ctypes.c_void_p(library.BrotliEncoderCreateInstance(None, None, None))
    for name, value in ((1, level), (2, 19)):
        library.BrotliEncoderSetParameter(state, name, ctypes.c_uint32(value))
    out = ctypes.create_string_buffer(2 * len(body) + 1024)
    left, room = ctypes.c_size_t(len(body)), ctypes.c_size_t(len(out))
    input_at, output_at = ctypes.c_char_p(body), ctypes.cast(out, ctypes.c_void_p)
    finish = 2
    done = library.BrotliEncoderCompressStream(
        state, finish, ctypes.byref(left), ctypes.byref(input_at), ctypes.byref(room), ctypes.byref(output_at), None
    )
    assert done and left.value == 0
    library.BrotliEncoderDestroyInstance(state)
    return len(out) - room.value


def measure(name, code):
    best, length = float("inf"), 0
    for _ in range(RUNS):
        began = time.perf_counter()
        for _ in range(BODIES):
            length = code()
        best = min(best, time.perf_counter() - began)
    print(f"{name:24} {best * 1e6 / BODIES:8.1f} us {length:6} bytes")


def main():
    file, length = sys.argv[1], int(sys.argv[2])
    with open(file, "rb") as opened:
        body = opened.read(length)
    for level in (1, 2, 3, 4, 6, 9):
        measure(f"zlib {level}", lambda: gzip(level, body))
    name = ctypes.util.find_library("brotlienc")
    if name is not None:
        library = ctypes.CDLL(name)
        for level in (1, 4, 5, 6):
            measure(f"brotli in C {level}", lambda: brotli(library, level, body))


main()
