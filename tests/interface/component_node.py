"""Runs the component's modules that draw nothing in Node, without a browser.

Node comes with Playwright, which the tests need anyway.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import playwright

from app.components.live_view.bundle import SOURCES, default_text

NODE = Path(playwright.__file__).parent / "driver" / "node"


def run_node(folder: Path, body: str, frame: bytes = b"", **values: Any) -> Any:
    """What the JavaScript `body` returns; it sees `frame`, `words`, `values` and all imports.

    `body` may import any file of `src/` as `await use("describe")`.
    """
    shutil.copytree(SOURCES, folder / "src", dirs_exist_ok=True)
    (folder / "src" / "package.json").write_text('{"type": "module"}')
    (folder / "frame.bin").write_bytes(frame)
    (folder / "told.json").write_text(json.dumps({"text": default_text(), "values": values}))
    script = folder / "run.mjs"
    script.write_text(f"""
import {{ readFileSync }} from "node:fs";
const use = (name) => import(`{folder}/src/${{name}}.js`);
const {{ text, values }} = JSON.parse(readFileSync("{folder}/told.json", "utf8"));
const {{ decodeFrame }} = await use("decode"), words = (await use("words")).makeWords(text);
const bytes = readFileSync("{folder}/frame.bin");
const frame = bytes.length ? decodeFrame(new Uint8Array(bytes).buffer) : null;
const run = async () => {{ {body} }};
console.log(JSON.stringify(await run()));
""")
    done = subprocess.run([NODE, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
