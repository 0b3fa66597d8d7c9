"""Runs a choice of the tests that pymongo has of itself, as they are in its source (`scripts/setup
--tests` fetches them), against a server or a set that lets tests have commands fail.

`pymongo_suite.txt` names the tests that fail here and may, each with its reason. One that fails and is
not named there is an error, and so is one that is named there and does not fail, or is not there at all.
"""

import fnmatch
import os
import pathlib
import sys

import pymongo
import pytest
from pymongo.uri_parser import parse_uri

# What the list calls what a test runs against.
STANDALONE, SET = "standalone", "set"

# Those that take long run once, where most of them are not skipped.
EVERYWHERE = "bulk collection command_monitoring cursor read_concern session write_concern".split()
MODULES = {
    STANDALONE: """
        collation collection_management comment custom_types database dbref grid_file gridfs
        gridfs_bucket gridfs_spec raw_bson read_write_concern_spec
    """.split(),
    SET: """
        change_stream crud_unified retryable_reads retryable_reads_unified retryable_writes
        retryable_writes_unified run_command sessions_unified versioned_api_integration
    """.split(),
}

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent.parent / f".drivers/pymongo-{pymongo.version}"
LIST = HERE / "pymongo_suite.txt"
# A test that hangs is a failed test.
SECONDS_MAX = 120


class Entry:
    """A reason, and the tests that fail for it."""

    def __init__(self, name):
        self.name = name
        self.reason = ""
        self.against = {STANDALONE, SET}
        self.tests = []

    def take(self, line):
        key, value = (part.strip() for part in line.split(":", 1))
        if key == "reason":
            self.reason = value
        elif key == "against":
            assert value in self.against, line
            self.against = {value}
        elif key == "test":
            self.tests.append(value)
        else:
            raise ValueError(f"{LIST.name} has an unknown line: {line}")


def known_failures(against):
    """The patterns of the tests that fail on what is tested."""
    entries = []
    for line in LIST.read_text().splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            entries.append(Entry(line[1:-1]))
        elif line and not line.startswith("#"):
            entries[-1].take(line)
    for entry in entries:
        assert entry.reason and entry.tests, f"[{entry.name}] needs a reason and tests"
    return [test for entry in entries if against in entry.against for test in entry.tests]


def is_named(pattern, test):
    """Whether a pattern, in which `*` stands for anything, means a test."""
    return fnmatch.fnmatchcase(test, pattern.replace("[", "[[]"))


class Outcomes:
    """What has become of each test, by its name without the folder."""

    def __init__(self):
        self.failed = {}
        self.passed = set()
        self.skipped = set()
        self.broken = []

    def pytest_runtest_logreport(self, report):
        test = report.nodeid.removeprefix("test/")
        if report.failed:
            self.failed.setdefault(test, str(report.longrepr))
        elif report.skipped:
            self.skipped.add(test)
        elif report.when == "call":
            self.passed.add(test)

    def pytest_collectreport(self, report):
        if report.failed:
            self.broken.append(f"{report.nodeid}: {report.longrepr}")

    def faults(self, patterns):
        yield from self.broken
        for test, error in self.failed.items():
            if not any(is_named(pattern, test) for pattern in patterns):
                yield f"{test} fails:\n{error}"
        passed = self.passed - self.failed.keys()
        for pattern in patterns:
            for test in passed:
                if is_named(pattern, test):
                    yield f"{test} is named in {LIST.name} by {pattern}, and passes"
            ran = self.skipped | self.passed | self.failed.keys()
            if not any(is_named(pattern, test) for test in ran):
                yield f"{LIST.name} names {pattern}, and there is no such test"


def main():
    uri = sys.argv[1]
    with pymongo.MongoClient(uri) as client:
        against = SET if "setName" in client.admin.command("hello") else STANDALONE
    # The tests look for the server here.
    host, port = parse_uri(uri)["nodelist"][0]
    os.environ.update(DB_IP=host, DB_PORT=str(port))
    os.chdir(TESTS)
    sys.path.insert(0, str(TESTS))
    sys.dont_write_bytecode = True
    outcomes = Outcomes()
    modules = [f"test/test_{module}.py" for module in EVERYWHERE + MODULES[against]]
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-W", "ignore", "--show-capture=no"]
    pytest.main([*options, "--no-summary", f"--timeout={SECONDS_MAX}", *modules], plugins=[outcomes])
    faults = list(outcomes.faults(known_failures(against)))
    print(*faults, sep="\n")
    # A choice that chooses nothing would hold for ever.
    assert len(outcomes.passed) > 300, f"only {len(outcomes.passed)} tests have passed"
    assert not faults, f"{len(faults)} tests are not what {LIST.name} says"
    print(f"{len(outcomes.passed)} passed, {len(outcomes.failed)} failed as they may")
    print("suite complete")


main()
