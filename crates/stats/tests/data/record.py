"""Records the scatter of a real gateway on this machine, for recorded.json.

    python3 record.py stillgate quiet 320 recorded.json

Starts the gateway 320 times, loads it with wrk for a second each time, and stores the CPU time per request in microseconds under
the name "quiet", in the order of the runs. "compilers" (500 runs) was recorded the same way while cargo built and tested a
workspace beside it.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

CONFIG = """
gateway: {listeners: [{address: "127.0.0.1:11080"}], workers: 1}
routes: [{id: a, uri: /a, plugins: {mocking: {response_example: hello}}}]
"""
URL = "http://127.0.0.1:11080/a"


def cpu_ns(pid):
    tasks = pathlib.Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())


def wait_until_up():
    for _ in range(500):
        try:
            return urllib.request.urlopen(URL, timeout=1).read()
        except OSError:
            time.sleep(0.02)
    sys.exit("the gateway did not start")


def reading(binary, config):
    gateway = subprocess.Popen([binary, "run", "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_up()
        before = cpu_ns(gateway.pid)
        report = subprocess.run(["wrk", "-t1", "-c8", "-d1s", URL], capture_output=True, text=True, check=True).stdout
        requests = next(int(line.split()[0]) for line in report.splitlines() if "requests in" in line)
        return (cpu_ns(gateway.pid) - before) / requests / 1e3
    finally:
        gateway.terminate()
        gateway.wait()


def main(binary, name, count, path):
    with tempfile.TemporaryDirectory() as directory:
        config = os.path.join(directory, "gateway.yaml")
        pathlib.Path(config).write_text(CONFIG)
        values = [round(reading(binary, config), 3) for _ in range(int(count))]
    file = pathlib.Path(path)
    recorded = json.loads(file.read_text()) if file.exists() else {}
    recorded[name] = values
    file.write_text(json.dumps(recorded) + "\n")


main(*sys.argv[1:])
