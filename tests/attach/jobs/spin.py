"""A job without torch: some threads rest, the main thread computes, in the end all must answer.

``spin.py FOLDER THREADS PERIOD``: prints ``ready``, asks all of them every so many seconds until
its standard input ends, writes what it saw of itself to ``FOLDER/result.json``.
"""

import json
import select
import sys
import threading
import time

folder, num_threads, period = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
asked = [threading.Lock() for _ in range(num_threads)]
answered = [threading.Semaphore(0) for _ in range(num_threads)]
counts = [0] * num_threads
ending = False


def rest(index):
    """Rest until asked, answer, rest again."""
    while True:
        asked[index].acquire()
        if ending:
            return
        counts[index] += 1
        answered[index].release()


threads = [threading.Thread(target=rest, args=(i,)) for i in range(num_threads)]
for lock in asked:
    lock.acquire()
for thread in threads:
    thread.start()

total = rounds = number = end = 0
lock = answer = names = None
names = {*globals(), "output"}
sys.stdout.write("ready\n")
sys.stdout.flush()
while not select.select([sys.stdin], [], [], 0)[0]:
    end = time.monotonic() + period
    while time.monotonic() < end:
        for number in range(1_000):
            total += number * number % 7
    rounds += 1
    for lock, answer in zip(asked, answered):  # noqa: B905 - strict is not known to 3.9
        lock.release()
        assert answer.acquire(timeout=10), "a thread did not come back"

ending = True
for lock in asked:
    lock.release()
for thread in threads:
    thread.join(10)
    assert not thread.is_alive()
with open(folder + "/result.json", "w") as output:
    json.dump(
        {
            "rounds": rounds,
            "counts": counts,
            "names": sorted(set(globals()) - names),
            "modules": sorted(m for m in sys.modules if "diagnose" in m),
            "marks": getattr(sys, "marks_of_the_test", 0),
            "threads": [thread.name for thread in threading.enumerate()],
        },
        output,
    )
