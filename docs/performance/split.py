#!/usr/bin/env python3
"""Split a profile of `engi bench` into who used the processor for what.

    perf record -o P.data -k CLOCK_MONOTONIC -a -g -e cpu-clock -F 5000 -- \
        engi bench burst --spans P.spans            # or exec
    perf script -i P.data --show-task-events \
        -F comm,pid,tid,time,event,ip,sym,dso > P.txt
    split.py P.txt P.spans [functions per component]

Only samples inside a span (a request under way) count. P.ps, if it is there,
has lines of `ps -eo pid,args` and tells gofers from sentries; programs with
symbols (no -s -w) give function names. Prints one line per
component and kind of work, in milliseconds of processor time per request,
then the functions that were on top most often.
"""
import bisect, collections, os, re, sys

# The first of these found from the top of a kernel stack names the work.
WORK = [
    ("exit of processes", r"do_exit|do_group_exit|exit_mmap|__mmput|release_task"),
    ("page faults", r"asm_exc_page_fault|handle_mm_fault|do_user_addr_fault"),
    ("mmap, munmap, madvise", r"__(x64|ia32)_sys_(mmap|munmap|mprotect|madvise|mremap|fallocate|brk)|ksys_mmap"),
    ("futex", r"__x64_sys_futex"),
    ("fork, exec", r"__x64_sys_(clone3?|v?fork|execve(at)?)|ret_from_fork"),
    ("signals", r"rt_sigreturn|arch_do_signal_or_restart|exit_to_user_mode_prepare|get_signal|__x64_sys_(tgkill|rt_sig\w+|sigaltstack)|asm_exc_(int3|general|invalid)|asm_sysvec_(?!apic|reschedule|call)"),
    ("seccomp", r"__secure_computing|__seccomp_filter|seccomp_run"),
    ("unix sockets, tcp", r"unix_stream|sock_(read|write)_iter|tcp_|__sys_(send|recv|accept|connect)|inet_|__x64_sys_(sendto|recvfrom|recvmsg|sendmsg|accept4|connect|socket|shutdown)"),
    ("poll, epoll, eventfd", r"epoll|__x64_sys_p?poll|eventfd"),
    ("ptrace, process_vm", r"ptrace|process_vm"),
    ("sleep, yield, scheduler", r"__x64_sys_(nanosleep|clock_nanosleep|sched_yield)|schedule"),
    ("files", r"vfs_|__x64_sys_(open|openat2?|read|write|pread64|pwrite64|close|fstat|newfstatat|stat|unlink\w*|rename\w*|mkdir\w*|getdents64|fsync|fdatasync|ftruncate|statx)|ext4|ksys_|path_"),
    ("cgroups, mounts", r"cgroup|mount|umount"),
    ("interrupts", r"asm_sysvec|irq_exit|handle_softirqs|__do_softirq"),
]
WORK = [(n, re.compile(p)) for n, p in WORK]


def spans(path):
    out = []
    for line in open(path):
        a, b = map(int, line.split())
        out.append((a / 1e9, b / 1e9))
    n = len(out)
    out.sort()
    merged = []
    for a, b in out:
        if merged and a <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], b)
        else:
            merged.append([a, b])
    return n, merged


def roles(path):
    role = {}
    if os.path.exists(path):
        for line in open(path):
            pid, _, args = line.strip().partition(" ")
            for name, r in (("runsc-sandbox", "sentry"), ("runsc-gofer", "gofer")):
                if args.startswith(name):
                    role[int(pid)] = r
    return role


def inside(pid, role, parent):
    """Whether a process runs programs of a sandbox: a descendant of a sentry."""
    for _ in range(16):
        pid = parent.get(pid)
        if role.get(pid) == "sentry":
            return True
    return False


HEAD = re.compile(r"^\s*(.*?)\s+(-?\d+)/(-?\d+)\s+([\d.]+): (.*)$")
FORK = re.compile(r"PERF_RECORD_FORK\((\d+):\d+\):\((\d+):\d+\)")


def samples(path):
    """Yields (comm, pid, time, frames or None, task event)."""
    head, frames = None, []
    for line in open(path, errors="replace"):
        if line[:1] == "\t":
            frames.append(line.strip())
            continue
        m = HEAD.match(line)
        if not m:
            continue
        if head:
            yield head + (frames,)
        head, frames = (m[1], int(m[2]), float(m[4]), m[5]), []
    if head:
        yield head + (frames,)


FRAME = re.compile(r"^([0-9a-f]+) (.*?)(?:\+0x[0-9a-f]+)? \((.*)\)$")


def main():
    text, span = sys.argv[1:3]
    top = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    n, windows = spans(span)
    starts = [w[0] for w in windows]
    role = roles(span.removesuffix(".spans") + ".ps")
    parent = {}
    ms = collections.Counter()
    tops = collections.defaultdict(collections.Counter)
    period = 1000 / 5000
    for comm, pid, t, what, frames in samples(text):
        f = FORK.match(what)
        if f:
            if f[1] != f[2]:
                parent[int(f[1])] = int(f[2])
            continue
        if not what.startswith("cpu-clock"):
            continue
        i = bisect.bisect_right(starts, t) - 1
        if i < 0 or t > windows[i][1]:
            continue
        frames = [m.groups() for m in map(FRAME.match, frames) if m]
        if not frames:
            continue
        kernel = frames[0][2] == "[kernel.kallsyms]"
        names = [f[1] for f in frames]
        if pid == 0 or comm == "swapper":
            who = "idle"
        elif comm == "engi" or comm == "perf-exec":
            who = "daemon and client"
        elif pid in role:
            who = role[pid]
        elif comm == "exe" and inside(pid, role, parent):
            who = "guest"
        elif comm in ("runsc", "exe") or comm.startswith("runsc"):
            who = "boots and teardown"
        elif re.match(r"kworker|ksoftirqd|rcu|kswapd|kcompactd|migration|kdamond|jbd2|watchdog", comm):
            who = "kernel threads"
        else:
            who = "others"
        if kernel:
            work = "kernel: other"
            joined = "\n".join(f[1] for f in frames if f[2] == "[kernel.kallsyms]")
            for name, p in WORK:
                if p.search(joined):
                    work = "kernel: " + name
                    break
        elif who == "guest":
            work = "programs"
        elif "vdso" in frames[0][2]:
            work = "program: clock"
        else:
            work = "program"
            j = "\n".join(names)
            if who in ("sentry", "gofer", "daemon and client", "boots and teardown"):
                if re.search(r"runtime\.(gcBgMarkWorker|gcAssistAlloc|bgsweep|bgscavenge|gcStart|gcDrain|gcMark|gcSweep|stopTheWorld)", j):
                    work = "program: garbage collection"
                elif re.search(r"runtime\.(schedule|findRunnable|park_m|mcall|notesleep|wakep|startm|stopm|sysmon|mstart|netpoll|goready|ready|resetspinning)", j) and not re.search(r"gvisor\.dev|net/http|engi-dev", j):
                    work = "program: Go scheduler"
                elif re.search(r"systrap\.", names[0]) or re.search(r"systrap\.\(\*(fastPathDispatcher|subprocess|sharedContext|platformContext|contextQueue)", "\n".join(names[:3])):
                    work = "program: systrap"
                elif "(*MemoryManager)" in j or "pgalloc" in j:
                    work = "program: memory manager"
                elif "loader." in j:
                    work = "program: boot"
                elif "kernel.(*Task).doSyscall" in j:
                    work = "program: system calls"
        ms[who, work] += period
        tops[who][names[0]] += 1
    wall = sum(b - a for a, b in windows) * 1000
    total = sum(ms.values())
    print(f"{n} requests, {wall:.0f} ms with one under way, processor time {total:.0f} ms; below: ms per request")
    by = collections.Counter()
    for (who, _), v in ms.items():
        by[who] += v
    for who, v in by.most_common():
        print(f"{v / n:8.3f}  {who}")
        for (w, work), x in sorted(ms.items(), key=lambda i: -i[1]):
            if w == who and x / n >= 0.005:
                print(f"          {x / n:8.3f}  {work}")
    for who, v in by.most_common():
        if top and who != "idle":
            print(f"\n# {who}")
            for name, k in tops[who].most_common(top):
                print(f"{k * period / n:8.3f}  {name}")


main()
