"""The floor: what no reader can avoid. Decompress each file and count its lines."""

import sys

from isal import igzip

BLOCK = 4 * 2**20


def main() -> None:
    """Print the number of lines of the files given."""
    lines = 0
    for path in sys.argv[1:]:
        opener = igzip.open if path.endswith(".gz") else open
        buffer = bytearray(BLOCK)
        view = memoryview(buffer)
        with opener(path, "rb") as file:
            while size := file.readinto(buffer):
                lines += bytes(view[:size]).count(b"\n")
    print(lines)


if __name__ == "__main__":
    main()
