"""Commands of GDB for programs whose ranks are threads or fibers of one process.

    (gdb) source /usr/local/share/rankloom/gdb.py

    rankloom ranks        where all ranks are: who waits in what, for whom, and who runs
    rankloom stacks       the stack of each rank, the program's own frames only; of the ranks N... with numbers
    rankloom stacks -all  with the library's frames

Stacks are those of threads: ranks as fibers share a thread, and only the one that runs has a stack that GDB sees. A run under a
schedule is the same on threads: RANKLOOM_ENGINE=threads beside its RANKLOOM_SEED or RANKLOOM_SCHEDULE.
"""

import re

import gdb

# Frames that are not the program's: the library's, those of what it is made with, and the C library's. A name in full is that of
# the linker, before the type of a template's result and without the debugging information, which may have lines only (-g1).
LINKER_NAMES = re.compile(r"_Z(?:T[hv]n?\d+_(?:n?\d+_)?)?Z*(?:N[KVrRO]*(?:8rankloom|4absl|5boost|3tbb|7testing)|(?:N[KVrRO]*)?S[tabsiod])|rankloom_")
NAMES = re.compile(r"(?:\w+ )?(?:rankloom|absl|std|boost|tbb|testing)::|rankloom_")
# The C library's are named from the folder of its sources.
FILES = re.compile(r"/usr/(?:local/)?include/|\.\./sysdeps/|\./(?:csu|debug|elf|io|libio|malloc|misc|nptl|posix|setjmp|signal|socket|stdlib|string|"
                   r"sysdeps|time)/|.*/include/(?:rankloom|absl)/")
# Folders of the library, as its build names them; a program may have folders of these names, too.
ROOMS = re.compile(r"\.\./(?:sim|fake_store|world|collectives|harness|bridge)/")
RANK = re.compile(r"rank (\d+)$")
FIBERS = "rankloom fibers"


def threads_of_ranks():
    """[(rank, thread)] in the order of the ranks, of the world whose thread is selected or of all."""
    found = []
    for thread in gdb.selected_inferior().threads():
        match = RANK.match(thread.name or "")
        if match:
            found.append((int(match.group(1)), thread))
    return sorted(found, key=lambda one: (one[0], one[1].num))


def fiber_threads():
    return [thread for thread in gdb.selected_inferior().threads() if thread.name == FIBERS]


class Kept:
    """The selected thread and frame, selected again at the end."""

    def __enter__(self):
        self.thread, self.frame = gdb.selected_thread(), gdb.selected_frame() if gdb.selected_thread() else None
        return self

    def __exit__(self, *_):
        if self.thread is not None and self.thread.is_valid():
            self.thread.switch()
            if self.frame.is_valid():
                self.frame.select()


def need_a_run():
    if gdb.selected_thread() is None:
        raise gdb.GdbError("The program is not being run.")


def call(function):
    """Calls a function of the program, which takes and gives nothing."""
    try:
        gdb.execute(f"call (void){function}()")
    except gdb.error as error:
        # GDB 13 cannot put vector registers back on processors with AMX. The call has ended by then, and the other registers are back.
        if "extended state" not in str(error):
            raise


class Rankloom(gdb.Command):
    """Ranks of this process: rankloom ranks, rankloom stacks."""

    def __init__(self):
        super().__init__("rankloom", gdb.COMMAND_STATUS, gdb.COMPLETE_COMMAND, True)


class Ranks(gdb.Command):
    """Prints where all ranks are: who waits in what, from which line and for whom, and who runs."""

    def __init__(self):
        super().__init__("rankloom ranks", gdb.COMMAND_STATUS)

    def invoke(self, _argument, _from_tty):
        need_a_run()
        with Kept() as kept:
            candidates = [*fiber_threads(), *(thread for _, thread in threads_of_ranks())]
            # That of the selected rank first: its world is meant.
            candidates.sort(key=lambda thread: thread.num != kept.thread.num)
            if not candidates:
                raise gdb.GdbError("No thread of a rank: no world runs.")
            candidates[0].switch()
            call("rankloom_describe")


class Stacks(gdb.Command):
    """Prints the stacks of the ranks, or of those that are named: rankloom stacks [-all] [RANK]..."""

    def __init__(self):
        super().__init__("rankloom stacks", gdb.COMMAND_STACK)

    def invoke(self, argument, _from_tty):
        need_a_run()
        words = gdb.string_to_argv(argument)
        whole = "-all" in words
        try:
            wanted = {int(word) for word in words if word != "-all"}
        except ValueError:
            raise gdb.GdbError("rankloom stacks: want numbers of ranks, or -all") from None
        ranks = [(rank, thread) for rank, thread in threads_of_ranks() if not wanted or rank in wanted]
        if not ranks:
            raise gdb.GdbError("Ranks are fibers of one thread here; RANKLOOM_ENGINE=threads makes the same run with a stack for each."
                               if fiber_threads() else "No such rank runs.")
        with Kept():
            for rank, thread in ranks:
                thread.switch()
                print(f"rank {rank} (thread {thread.num})")
                frame, calls = gdb.newest_frame(), False
                while frame is not None:
                    if whole or is_of_program(frame, calls):
                        print(f"  {text_of(frame)}")
                    if frame.type() != gdb.INLINE_FRAME:
                        calls = frame.type() != gdb.SIGTRAMP_FRAME
                    frame = frame.older()


def is_of_program(frame, calls):
    """Of a frame that `calls` the newer one, or else was interrupted there."""
    symtab = frame.find_sal().symtab
    if symtab is None or FILES.match(symtab.filename) is not None:
        return False
    # A call that does not return may be the end of a function: the address behind the call is in the next one.
    place = frame.pc() - calls
    of_library = LINKER_NAMES.match(gdb.execute(f"with print demangle off -- info symbol {place:#x}", to_string=True)) is not None
    if frame.type() != gdb.INLINE_FRAME:
        return not of_library
    # A function in its caller has no symbol of its own, and the debugging information may not say its namespace.
    return NAMES.match(frame.name() or "") is None and not (of_library and ROOMS.match(symtab.filename))


def text_of(frame):
    sal = frame.find_sal()
    name = frame.name() or "??"
    return f"{name} at {sal.symtab.filename}:{sal.line}" if sal.symtab is not None else f"{name} ({gdb.solib_name(frame.pc()) or 'no symbols'})"


Rankloom()
Ranks()
Stacks()
