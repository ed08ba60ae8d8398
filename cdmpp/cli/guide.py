"""User guide in the terminal: a command for each question, and examples of every command."""

from __future__ import annotations

import re
import textwrap

#: Users' questions, and the command that answers each.
QUESTIONS = (
    ("How long does my program take?", "predict FILE.py"),
    ("How long does my network take?", "predict FILE.onnx"),
    ("Where does the time go, line by line?", "explain FILE.py"),
    ("What is its lower bound?", "roofline FILE.py"),
    ("How do I find a fast schedule?", "search FILE.onnx"),
    ("How do operators add up to that time?", "replay FILE.onnx"),
    ("Which device should I rent or buy?", "compare FILE.onnx"),
    ("How do I add my own machine?", "device add NAME"),
    ("How long does a language model take?", "compare --model NAME"),
    ("My measured programs, on another device?", "dataset transfer"),
    ("How do I train on my measurements?", "train --dataset DIR"),
    ("How do I adapt a model?", "finetune --device LABEL"),
    ("How good is a model?", "evaluate --model RUN"),
    ("Which settings fit my data?", "autotune --dataset DIR"),
    ("Where do I get measurements?", "dataset fetch --list"),
    ("How do I measure programs here?", "measure --out DIR"),
    ("Can I trust these measurements?", "doctor DIR"),
    ("How long does a vLLM kernel take?", "analytic kernels predict"),
    ("What does this profile show?", "profile FILE"),
    ("How do I serve many clients?", "serve"),
)

_CONV_LAYER = "--layer 32,64,56,128,3,1,1 --device t4"
_GEMM = "--kernel gemm --call m=64,n=4096,k=4096,dtype=fp8"
_LINEAR = "--op linear --shape batch=1,m=512,n=1024,k=1024"

#: Arguments of every command, by its words; a test parses each.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "dataset fetch": ("--list", "t4"),
    "dataset extract": (
        "--device epyc-avx2-1c --out cache/epyc",
        "--dataset LOGS/t4.json.gz --per-task 50 --out cache/t4",
    ),
    "dataset stats": ("cache/tenset-cpu",),
    "dataset audit": ("cache/tenset-cpu --strict",),
    "dataset transfer": ("--from epyc-avx2-1c --to xeon-avx2-1c --out on-xeon.parquet",),
    "dataset merge": ("cache/tenset-cpu cache/mine --out cache/both",),
    "dataset export": ("cache/tenset-cpu --format cdmpp6 --out exported",),
    "train": (
        "--device epyc-avx2-1c,xeon-avx2-1c --out runs/mine",
        "--config configs/train/quick.yaml --set transformer.loop.epochs=2",
        "--device v100 --model gbdt",
    ),
    "finetune": (
        "--from runs/mine --device t4 --budget 10tasks --dataset DIR",
        "--from runs/mine --network bert_tiny --budget 3tasks --dataset DIR",
    ),
    "autotune": (
        "--config configs/autotune/quick.yaml",
        "--model gbdt --trials 40 --dataset DIR --out runs/tuned",
    ),
    "autotune report": ("--out runs/tuned",),
    "runs": ("", "mine other --folder runs"),
    "evaluate": (
        "--model pretrained --device epyc-avx2-1c",
        "--model runs/mine --dataset DIR --json",
    ),
    "predict": (
        "kernel.py --device epyc-avx2-1c --device v100",
        "--records records.json --model runs/mine",
        "model.onnx --device epyc-avx2-1c",
        "--torch nets.py:model --input 3x224x224 --batch 1,8",
    ),
    "explain": (
        "kernel.py --device epyc-avx2-1c",
        "--network model.onnx --device epyc-avx2-1c --html page.html",
    ),
    "compare": (
        "nets.py:resnet --device a100,h100,l4 --batch 1,8",
        "--transformer layers=32,width=4096,heads=32,ffn=14336,vocab=128256 "
        "--prefill 2048 --decode-at 4096 --device h100,a100",
        "--model config.json --device h100,b200 --tensor-parallel 4,8 --concurrency 8,64 "
        "--input-tokens 1024 --output-tokens 512 --target-tpot 20ms",
        "--model config.json --device h100 --concurrency 8,64 --input-tokens 1024 "
        "--output-tokens 512 --measured points.csv",
    ),
    "serve": ("--port 8080", "--model pretrained --model runs/mine --token-file token"),
    "measure": (
        "--list-tasks",
        "--out mine --device epyc-avx2-1c --task dense:m=128,n=256,k=256",
        "--out mine --device epyc-avx2-1c --network model.onnx",
    ),
    "search": (
        "--task dense:m=128,n=256,k=256 --device epyc-avx2-1c --trials 64 --out found",
        "--network model.onnx --device epyc-avx2-1c --minutes 30 --out found",
        "show found",
    ),
    "replay": (
        "model.onnx --device epyc-avx2-1c",
        "configs/replay/dlrm-default.yaml --device v100",
        "trace.json --scale gemm=0.5 --out replayed",
    ),
    "device list": ("--kind gpu",),
    "device show": ("v100", "--device-spec mine.yaml"),
    "device add": ("my-laptop --minutes 10",),
    "device curve": ("runs/device-my-laptop --plot curve.svg",),
    "device occupancy": ("--device v100 --threads 256 --registers 64 --shared-mem 16384",),
    "doctor": ("runs/mine", "--live --seconds 30"),
    "analytic conv fit": ("--layers layers.csv --device t4 --out conv.json",),
    "analytic conv evaluate": ("--layers layers.csv --device t4",),
    "analytic conv predict": (_CONV_LAYER, "--network resnet50 --batch 32 --device v100"),
    "analytic conv pick": (_CONV_LAYER,),
    "analytic conv collect": ("--grid winograd --gpu t4 --out layers.csv",),
    "analytic conv from-nvprof": (
        "--trace trace.csv --metrics metrics.csv --list layers.txt --algorithm winograd "
        "--device titan-xp --out workbooks",
    ),
    "analytic embedding predict": (
        "--preset configs/embedding/dlrm-default.yaml --device a100-40",
        "--batch 2048 --rows 1000000 --tables 8 --lookups 100 --width 64 --zipf 1.05",
    ),
    "analytic embedding measure": ("--out campaign --grid smoke",),
    "analytic embedding fit": ("--data campaign --out constants.json",),
    "analytic embedding evaluate": ("--data campaign --split table",),
    "analytic embedding report": ("--data campaign --out report",),
    "analytic operator fit": ("--data TABLES --out operators.json",),
    "analytic operator evaluate": ("--data TABLES --out report",),
    "analytic operator predict": (f"{_LINEAR} --device t4,h100",),
    "analytic kernels fit": ("--data KERNELS --out kernels",),
    "analytic kernels evaluate": ("--data KERNELS --out report",),
    "analytic kernels predict": (f"{_GEMM} --device h100,b200",),
    "roofline": (
        f"{_LINEAR} --device v100",
        "--program 3f2a --device epyc-avx2-1c",
    ),
    "profile": ("trace.json --timeline page.html", "before.csv --compare after.csv"),
    "networks generate": ("--config configs/networks/cpu-small.yaml --out drawn",),
    "networks measure": ("--config configs/networks/cpu-small.yaml --out measured",),
    "networks train": ("--dataset measured --out runs/networks",),
    "networks evaluate": ("runs/networks --dataset measured",),
    "networks package": ("runs/networks --licence Apache-2.0 --made-by 'my command'",),
    "networks convert": ("DIR --out my-set", "my-set --to published --out my-files"),
    "networks statistics": ("my-set",),
    "completion": (
        "bash > ~/.local/share/bash-completion/completions/cdmpp",
        "zsh > ~/.zfunc/_cdmpp",
        "fish > ~/.config/fish/completions/cdmpp.fish",
    ),
    "train-code": ("--model runs/mine --data cache/tenset-cpu",),
    "distil": ("--model runs/mine --data cache/tenset-cpu",),
}  # fmt: skip


def questions_text() -> str:
    """Returns the table of questions and commands."""
    width = max(len(question) for question, _ in QUESTIONS)
    rows = "\n".join(f"  {question:{width}}  cdmpp {command}" for question, command in QUESTIONS)
    return (
        f"cdmpp predicts how long a program takes on a device, without running it.\n\n{rows}"
        "\n\n`cdmpp --help` lists all commands, `cdmpp COMMAND --help` has examples."
    )


def examples_text(words: str) -> str:
    """Returns the examples of a command; of a group, one of each part.

    Args:
        words: words of the command, e.g. `dataset fetch`.
    """
    own = [f"cdmpp {words} {arguments}" for arguments in EXAMPLES.get(words, ())]
    firsts: dict[str, str] = {}
    for path, examples in EXAMPLES.items():
        if path.startswith(f"{words} "):
            part = path.removeprefix(f"{words} ").split()[0]
            firsts.setdefault(part, f"cdmpp {path} {examples[0]}")
    lines = [_wrapped(line) for line in own or firsts.values()]
    return "\n".join(["examples:", *(f"  {line}" for line in lines)])


def _wrapped(command: str) -> str:
    """Wraps a command with backslashes; an option and its value stay on one line."""
    whole = re.sub(" (?!--)", "\0", command)
    lines = textwrap.wrap(whole, 74, break_long_words=False, break_on_hyphens=False)
    return " \\\n      ".join(lines).replace("\0", " ")
