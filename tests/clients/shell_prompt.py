"""Our shell at a terminal: what Tab completes and lists, and what Ctrl-C ends.

Arguments: the URI for the driver that watches, the shell's program, the address for it.
"""

import os
import pty
import re
import select
import sys
import time

import pymongo

URI, PROGRAM, ADDRESS = sys.argv[1:]
PATIENCE_S = 30


class Terminal:
    def __init__(self):
        self.text = ""
        self.process, self.file = pty.fork()
        if self.process == 0:
            os.environ.update(TERM="xterm", HOME="/nonexistent")
            os.execv(PROGRAM, [PROGRAM, "--quiet", ADDRESS])

    def send(self, keys):
        self.text = ""
        os.write(self.file, keys.encode())

    def wait(self, what):
        """Until `what`, an expression, has been shown since the last keys."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(what, self.shown()):
            left = deadline - time.monotonic()
            assert left > 0, f"{what!r} is not shown, but {self.shown()!r}"
            if select.select([self.file], [], [], left)[0]:
                self.text += os.read(self.file, 65536).decode(errors="replace")

    def shown(self):
        """Without colours and movements of the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", self.text)

    def line(self, line, what):
        self.send(line + "\r")
        self.wait(what)


def running(client):
    """What the server does for the shell that takes long."""
    listed = client.admin.command("currentOp")["inprog"]
    names = [next(iter(operation.get("command") or {"": 0})) for operation in listed]
    slow = ("find", "mapreduce", "_shardmapreduce", "getmore", "count")
    return [name for name in names if name.lower() in slow]


def until(what, condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


client = pymongo.MongoClient(URI)
terminal = Terminal()
terminal.wait("> $")

# Tab completes what is unique, and lists what is not.
terminal.send("db.prompted.fi\t")
terminal.wait(r"db\.prompted\.find(?=[\s\S]*findAndModify)(?=[\s\S]*findOneAndDelete)")
terminal.send("\x03")
terminal.wait("> $")
terminal.send("db.promp\t")
terminal.wait(r"db\.prompted$")
terminal.send(".findOneAndD\t")
terminal.wait(r"\.findOneAndDelete$")
terminal.send("\x03")
terminal.wait("> $")
terminal.send("show c\t")
terminal.wait(r"show collections$")
terminal.line("", "prompted[\\s\\S]*> $")

# What a call gives is not known before it is made: Tab leaves the line as it is.
terminal.line("db.prompted.find().l\timit(1).itcount()", r"\n1\n[\s\S]*> $")

# Ctrl-C ends what the server does, and gives the prompt back.
for line in [
    "db.prompted.find({$where: 'while (true);'}).itcount()",
    "db.prompted.mapReduce(function () { while (true); }, function () { return 1; }, {out: {inline: 1}})",
]:
    terminal.send(line + "\r")
    until(f"{line} runs", lambda: running(client))
    terminal.send("\x03")
    terminal.wait(r"interrupted[\s\S]*> $")
    until(f"{line} has ended: {running(client)}", lambda: not running(client))

# What the shell does itself ends as well.
for line in [
    "print('be' + 'gun'); while (true);",
    "print('be' + 'gun'); sleep(1000000)",
    "print('be' + 'gun'); for (;;) db.prompted.find().itcount()",
]:
    terminal.line(line, "begun\n")
    terminal.send("\x03")
    terminal.wait(r"interrupted[\s\S]*> $")
terminal.line("1 + 1", r"\n2\n[\s\S]*> $")
terminal.line("db.prompted.count()", r"\n2\n[\s\S]*> $")
terminal.send("exit\r")
terminal.wait("bye")
assert os.waitpid(terminal.process, 0)[1] == 0
print("prompt complete")
