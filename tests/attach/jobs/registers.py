"""A thread that rests in a futex with a pattern in its registers, and looks at them afterwards.

``registers.py FOLDER``: prints ``ready``, wakes the thread now and then until its standard
input ends, writes what differed to ``FOLDER/result.json``. Machine code for x86-64 with AVX.
"""

import ctypes
import json
import mmap
import select
import sys
import threading

folder = sys.argv[1]
FUTEX, WAKE, EAGAIN = 202, 129, 11

# long rest(int *word, const char *pattern, char *seen)
CODE = bytes.fromhex(
    "53 4154 4155"  # push rbx; push r12; push r13
    "4989d4"  # mov r12, rdx
    "c5fc1006"  # vmovups ymm0, [rsi]
    "c5fc107e20"  # vmovups ymm7, [rsi+32]
    "c57c107e40"  # vmovups ymm15, [rsi+64]
    "4c8b4660"  # mov r8, [rsi+96]
    "4c8b4e68"  # mov r9, [rsi+104]
    "4c8b6e70"  # mov r13, [rsi+112]
    "488b5e78"  # mov rbx, [rsi+120]
    "be80000000"  # mov esi, FUTEX_WAIT | FUTEX_PRIVATE_FLAG
    "31d2 4531d2"  # xor edx, edx; xor r10d, r10d: wait while it is 0, without an end
    "b8ca000000 0f05"  # mov eax, futex; syscall
    "c4c17c110424"  # vmovups [r12], ymm0
    "c4c17c117c2420"  # vmovups [r12+32], ymm7
    "c4417c117c2440"  # vmovups [r12+64], ymm15
    "4d89442460"  # mov [r12+96], r8
    "4d894c2468"  # mov [r12+104], r9
    "4d896c2470"  # mov [r12+112], r13
    "49895c2478"  # mov [r12+120], rbx
    "c5f877"  # vzeroupper
    "415d 415c 5b c3"  # pop r13; pop r12; pop rbx; ret
)
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(CODE)
rest = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ctypes.addressof(ctypes.c_char.from_buffer(page))
)
word = ctypes.c_int(0)
pattern = bytes(range(1, 129))
results = {"rounds": 0, "results": [], "differences": []}
ending = False


def look():
    """Rest, and compare."""
    seen = ctypes.create_string_buffer(128)
    while not ending:
        word.value = 0
        result = rest(ctypes.addressof(word), pattern, seen)
        results["rounds"] += 1
        if result not in (0, -EAGAIN):
            results["results"].append(result)
        if seen.raw != pattern:
            results["differences"].append(seen.raw.hex())


thread = threading.Thread(target=look)
thread.start()
sys.stdout.write("ready\n")
sys.stdout.flush()
libc = ctypes.CDLL(None)
while thread.is_alive():
    ending = bool(select.select([sys.stdin], [], [], 0.15)[0])
    word.value = 1
    libc.syscall(FUTEX, ctypes.byref(word), WAKE, 1, None, None, 0)
with open(folder + "/result.json", "w") as file:
    json.dump({**results, "marks": getattr(sys, "marks_of_the_test", 0)}, file)
