"""Says before anything is downloaded what `make app` found, needs and will do.

Run as a script by whatever Python the machine has, so it uses the standard library alone and is
written in syntax that an old Python can still parse: it has to reach the line that names the
remedy. Exit status 0: go on; 2: one sentence on stderr says what is in the way.
"""

from __future__ import print_function

import os
import shutil
import socket
import subprocess
import sys

MIN_PYTHON = (3, 11)
MODEL_BYTES = 98362432
# CPU: measured in an empty environment. CUDA: an estimate, not measured.
CPU_DOWNLOAD_GB, CPU_DISK_GB = 0.6, 2.5
CUDA_DOWNLOAD_GB, CUDA_DISK_GB = 3.5, 8.0
DEFAULT_PORT = 8501


def version_problem(version):
    """The sentence for a Python older than 3.11, or None; `version` is (major, minor, ...)."""
    if tuple(version[:2]) >= MIN_PYTHON:
        return None
    return (
        "Python %d.%d is too old: this project needs 3.11 or newer; install it (on Debian 12 or "
        "Ubuntu 24.04: sudo apt install python3 python3-venv) and name it: "
        "make app PYTHON=python3.11" % (version[0], version[1])
    )


def venv_problem(has_venv, has_ensurepip, executable):
    """The sentence for a Python that cannot make an environment, or None."""
    if has_venv and has_ensurepip:
        return None
    missing = "ensurepip" if has_venv else "venv"
    return (
        "%s cannot make an environment because its module %s is missing: install Debian's "
        "package python3-venv (sudo apt install python3-venv), then run make app again"
        % (executable, missing)
    )


def disk_problem(free_bytes, needed_gb, folder):
    """The sentence for a disk that is too full, or None."""
    if free_bytes >= needed_gb * 1e9:
        return None
    return "%s has %.1f GB free and the installation needs %.1f GB: free some space first" % (
        folder,
        free_bytes / 1e9,
        needed_gb,
    )


def port_problem(port, host="127.0.0.1"):
    """The sentence for a port somebody else serves, or None."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
    except (OSError, OverflowError) as error:
        return (
            "port %d cannot be opened (%s): stop the program that holds it or choose another "
            "one: make app PORT=%d" % (port, error, 8502 if port != 8502 else 8503)
        )
    finally:
        probe.close()
    return None


def tunnel_line(environ, port):
    """The `ssh -L` line for someone logged in over SSH, or None.

    SSH_CONNECTION holds client address, client port, server address, server port.
    """
    parts = environ.get("SSH_CONNECTION", "").split()
    if len(parts) != 4:
        return None
    user = environ.get("USER") or environ.get("LOGNAME") or "you"
    port_option = "" if parts[3] == "22" else " -p %s" % parts[3]
    return "ssh -L %d:localhost:%d%s %s@%s" % (port, port, port_option, user, parts[2])


def has_module(name):
    """Whether this Python can import the module, without importing it."""
    try:
        from importlib.util import find_spec
    except ImportError:
        return False
    return find_spec(name) is not None


def has_nvidia_gpu():
    """Whether NVIDIA's driver answers on this machine."""
    if not hasattr(shutil, "which") or shutil.which("nvidia-smi") is None:
        return False
    with open(os.devnull, "w") as sink:
        return subprocess.call(["nvidia-smi", "-L"], stdout=sink, stderr=sink) == 0


def free_bytes(folder):
    """Bytes a user may still write where `folder` is."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def needs(has_gpu):
    """(download GB, disk GB) of the packages and the model."""
    model_gb = MODEL_BYTES / 1e9
    if has_gpu:
        return CUDA_DOWNLOAD_GB + model_gb, CUDA_DISK_GB + 3 * model_gb
    return CPU_DOWNLOAD_GB + model_gb, CPU_DISK_GB + 3 * model_gb


def report_install(folder):
    """Print what was found and what is needed; return the problems in the way."""
    gpu = has_nvidia_gpu()
    download_gb, disk_gb = needs(gpu)
    print("Python    %s (%s)" % (".".join(map(str, sys.version_info[:3])), sys.executable))
    print("GPU       %s" % ("NVIDIA, with CUDA torch" if gpu else "none found: a CPU stands in"))
    print("Download  about %.1f GB (packages and the 98 MB model)" % download_gb)
    free = free_bytes(folder)
    print("Disk      about %.1f GB of %.1f GB free in %s" % (disk_gb, free / 1e9, folder))
    if not gpu:
        print(
            "          (about %.1f GB if pip's index offers only the CUDA build of torch: see "
            "README.md, Size)" % CUDA_DISK_GB
        )
    too_old = version_problem(sys.version_info)
    if too_old:
        return [too_old]
    problems = [
        venv_problem(has_module("venv"), has_module("ensurepip"), sys.executable),
        disk_problem(free, disk_gb, folder),
    ]
    return [problem for problem in problems if problem]


def report_start(port):
    """Print where the dashboard will be; return the problems in the way."""
    problem = port_problem(port)
    if problem:
        return [problem]
    print("Dashboard http://localhost:%d" % port)
    tunnel = tunnel_line(os.environ, port)
    if tunnel:
        print("You are logged in over SSH. On your own machine run:\n    %s" % tunnel)
    return []


def main(arguments):
    """`preflight.py install [FOLDER]` or `preflight.py start [PORT]`."""
    step = arguments[0] if arguments else "install"
    if step == "install":
        problems = report_install(os.path.abspath(arguments[1] if len(arguments) > 1 else "."))
    elif step == "start":
        text = arguments[1] if len(arguments) > 1 else str(DEFAULT_PORT)
        if not text.isdigit() or not 1 <= int(text) <= 65535:
            problems = ["port %r is not a number from 1 to 65535: make app PORT=8501" % text]
        else:
            problems = report_start(int(text))
    else:
        problems = ["unknown step %r: give install or start" % step]
    sys.stdout.flush()
    for problem in problems:
        sys.stderr.write(problem + "\n")
    return 2 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
