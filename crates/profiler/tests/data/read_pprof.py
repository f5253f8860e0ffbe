"""Reads a profile with Google's protobuf, from a description of profile.proto of its own, and prints what it found as JSON.

An unknown field, an index that leads nowhere or a text that is no UTF-8 ends it with an error.
"""

import gzip
import json
import sys

from google.protobuf import descriptor_pb2, descriptor_pool

try:
    from google.protobuf.message_factory import GetMessageClass
except ImportError:  # before 4.22
    from google.protobuf.message_factory import MessageFactory

    GetMessageClass = MessageFactory().GetPrototype

INT64, UINT64, BOOL, STRING, MESSAGE = 3, 4, 8, 9, 11
ONE, MANY = 1, 3

# google/pprof, proto/profile.proto: message, and number, name, type and whether it is repeated of each field.
MESSAGES = {
    "ValueType": [(1, "type", INT64, ONE), (2, "unit", INT64, ONE)],
    "Label": [(1, "key", INT64, ONE), (2, "str", INT64, ONE), (3, "num", INT64, ONE), (4, "num_unit", INT64, ONE)],
    "Sample": [(1, "location_id", UINT64, MANY), (2, "value", INT64, MANY), (3, "label", "Label", MANY)],
    "Mapping": [
        (1, "id", UINT64, ONE),
        (2, "memory_start", UINT64, ONE),
        (3, "memory_limit", UINT64, ONE),
        (4, "file_offset", UINT64, ONE),
        (5, "filename", INT64, ONE),
        (6, "build_id", INT64, ONE),
        (7, "has_functions", BOOL, ONE),
        (8, "has_filenames", BOOL, ONE),
        (9, "has_line_numbers", BOOL, ONE),
        (10, "has_inline_frames", BOOL, ONE),
    ],
    "Line": [(1, "function_id", UINT64, ONE), (2, "line", INT64, ONE), (3, "column", INT64, ONE)],
    "Location": [
        (1, "id", UINT64, ONE),
        (2, "mapping_id", UINT64, ONE),
        (3, "address", UINT64, ONE),
        (4, "line", "Line", MANY),
        (5, "is_folded", BOOL, ONE),
    ],
    "Function": [
        (1, "id", UINT64, ONE),
        (2, "name", INT64, ONE),
        (3, "system_name", INT64, ONE),
        (4, "filename", INT64, ONE),
        (5, "start_line", INT64, ONE),
    ],
    "Profile": [
        (1, "sample_type", "ValueType", MANY),
        (2, "sample", "Sample", MANY),
        (3, "mapping", "Mapping", MANY),
        (4, "location", "Location", MANY),
        (5, "function", "Function", MANY),
        (6, "string_table", STRING, MANY),
        (7, "drop_frames", INT64, ONE),
        (8, "keep_frames", INT64, ONE),
        (9, "time_nanos", INT64, ONE),
        (10, "duration_nanos", INT64, ONE),
        (11, "period_type", "ValueType", ONE),
        (12, "period", INT64, ONE),
        (13, "comment", INT64, MANY),
        (14, "default_sample_type", INT64, ONE),
        (15, "doc_url", INT64, ONE),
    ],
}


def profile_class():
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="perftools.profiles", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind, label in fields:
            added = message.field.add(number=number, name=field, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = MESSAGE, f".perftools.profiles.{kind}"
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("perftools.profiles.Profile"))


def main():
    profile = profile_class()()
    profile.ParseFromString(gzip.decompress(sys.stdin.buffer.read()))
    before = profile.ByteSize()
    profile.DiscardUnknownFields()
    assert profile.ByteSize() == before, "it has fields that are not in the format"
    texts = profile.string_table
    assert texts[0] == "", "the first text is empty"
    locations = {one.id: one for one in profile.location}
    functions = {one.id: one for one in profile.function}
    mappings = {one.id for one in profile.mapping}
    assert 0 not in locations and 0 not in functions and 0 not in mappings
    assert all(one.mapping_id in mappings | {0} for one in profile.location)
    totals = [0] * len(profile.sample_type)
    with_function, labels = {}, {}
    for sample in profile.sample:
        assert len(sample.value) == len(totals), "a value of each type"
        totals = [sum(pair) for pair in zip(totals, sample.value)]
        lines = [line for id in sample.location_id for line in locations[id].line]
        for name in {texts[functions[line.function_id].name] for line in lines}:
            sums = with_function.setdefault(name, [0] * len(totals))
            with_function[name] = [sum(pair) for pair in zip(sums, sample.value)]
        for label in sample.label:
            kind = texts[label.str] if label.str else "number"
            labels.setdefault(texts[label.key], set()).add(kind)
    json.dump(
        {
            "types": [[texts[one.type], texts[one.unit]] for one in profile.sample_type],
            "default": texts[profile.default_sample_type],
            "totals": totals,
            "samples": len(profile.sample),
            "functions": with_function,
            "labels": {name: sorted(kinds) for name, kinds in labels.items()},
            "comments": [texts[one] for one in profile.comment],
        },
        sys.stdout,
    )


main()
