"""Draws a flame graph from folded stacks: `py-spy record -f raw -o STACKS -p PID`, then

python -m bench.flame STACKS store.svg --title "store"
"""

import argparse
import colorsys
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

WIDTH, ROW, CHAR = 1200, 16, 6.2
# Narrower frames are omitted.
WIDTH_MIN = 0.6


@dataclass
class Frame:
    """A function, its number of samples, and its callees."""

    name: str
    count: int = 0
    callees: dict[str, "Frame"] = field(default_factory=dict)

    def depth(self) -> int:
        return 1 + max((callee.depth() for callee in self.callees.values()), default=0)


def read(stacks: str) -> Frame:
    """The tree of folded stacks: `outer;inner;... count` a line."""
    root = Frame("all")
    for line in stacks.splitlines():
        stack, _, number = line.rpartition(" ")
        root.count += int(number)
        frame = root
        for name in stack.split(";"):
            # Calls of one function from several of its lines form one frame.
            name = name.rsplit(":", 1)[0] + ")" if name.endswith(")") and ":" in name else name
            frame = frame.callees.setdefault(name, Frame(name))
            frame.count += int(number)
    return root


def self_shares(root: Frame) -> dict[str, float]:
    """The share of samples in which each function was the innermost, largest first."""
    counts: dict[str, int] = defaultdict(int)

    def visit(frame: Frame) -> None:
        counts[frame.name] += frame.count - sum(callee.count for callee in frame.callees.values())
        for callee in frame.callees.values():
            visit(callee)

    visit(root)
    return {name: count / root.count for name, count in sorted(counts.items(), key=lambda item: -item[1])}


def draw(root: Frame, title: str) -> str:
    """An SVG: the outermost function at the bottom, widths by samples; the tooltip has name and share."""
    height = (root.depth() + 2) * ROW
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace"'
        ' font-size="10">'
        f'<rect width="100%" height="100%" fill="#fff"/><text x="4" y="12" font-size="12">{escape(title)}</text>'
    )
    return head + "".join(_boxes(root, root.count, 0.0, height - ROW)) + "</svg>\n"


def _boxes(frame: Frame, all_count: int, x: float, y: float) -> Iterator[str]:
    width = frame.count / all_count * WIDTH
    if width < WIDTH_MIN:
        return
    rgb = colorsys.hls_to_rgb((15 + zlib.crc32(frame.name.encode()) % 40) / 360, 0.68, 0.85)
    colour = "#" + "".join(f"{round(255 * part):02x}" for part in rgb)
    text = frame.name[: max(int((width - 4) / CHAR), 0)] if width > 4 * CHAR else ""
    yield (
        f"<g><title>{escape(frame.name)} {frame.count / all_count:.1%}</title>"
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 1}" fill="{colour}"/>'
        f'<text x="{x + 2:.1f}" y="{y + 11}">{escape(text)}</text></g>'
    )
    for callee in sorted(frame.callees.values(), key=lambda one: one.name):
        yield from _boxes(callee, all_count, x, y - ROW)
        x += callee.count / all_count * WIDTH


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.flame", description="Draws a flame graph of folded stacks.")
    parser.add_argument("stacks", type=Path, help="made by py-spy record -f raw")
    parser.add_argument("svg", type=Path)
    parser.add_argument("--title", default="")
    parser.add_argument("--thread", default="", help="only stacks with this in them")
    arguments = parser.parse_args()
    lines = [line for line in arguments.stacks.read_text().splitlines() if arguments.thread in line]
    if not lines:
        parser.error(f"{arguments.stacks} has no stacks with {arguments.thread!r} in them")
    root = read("\n".join(lines))
    arguments.svg.write_text(draw(root, arguments.title))
    for name, share in list(self_shares(root).items())[:12]:
        print(f"{share:6.1%} {name}")


if __name__ == "__main__":
    main()
