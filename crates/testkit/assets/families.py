"""Reads an exposition from standard input with prometheus_client's parsers and prints its families as JSON.

The argument is `text` or `openmetrics`. Numbers are printed as Python writes them, because JSON has no NaN and no infinity.
"""

import json
import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text


def number(value):
    return None if value is None else repr(float(value))


def sample(s):
    e = s.exemplar
    return {
        "name": s.name,
        "labels": s.labels,
        "value": number(s.value),
        "timestamp": number(s.timestamp),
        "exemplar": e and {"labels": e.labels, "value": number(e.value), "timestamp": number(e.timestamp)},
    }


parse = {"text": text, "openmetrics": openmetrics}[sys.argv[1]]
# Bytes, so that Python translates no line ends.
source = sys.stdin.buffer.read().decode("utf-8")
families = [
    {"name": f.name, "kind": f.type, "help": f.documentation, "unit": f.unit, "samples": [sample(s) for s in f.samples]}
    for f in parse(source)
]
json.dump(families, sys.stdout)
