#!/usr/bin/env python3
"""plan_example.py FILE.json... - checks page tables, windows and the tree mask of a step against the rules.

The files are those of `aerie pack ID --plan T.S`; history/pack/PACK.md describes every field. This is an example
for tests of other engines: read() and Table need nothing but the standard library and can be copied.
Prints what was checked; ends with status 1 at the first rule that a plan breaks, and names it.
"""
import json
import sys


class Table:
    """One page table of a pass: which cells and slots a row reads, and where it writes."""

    def __init__(self, plan, table):
        self.plan, self.name = plan, table["table"]
        self.size, self.window = table["page_size"], table["window"]
        self.pages, self.lo, self.hi = table["pages"], table["lo"], table["hi"]
        self.expand, self.write = table["expand"], table["write"]

    def slot(self, cell, request=0):
        """The slot of a cell: page of its column, and the place in the page. None: the page is released."""
        column = cell // self.size
        pages = self.pages[request]
        if column >= len(pages) or pages[column] == 0:
            return None
        return pages[column] * self.size + cell % self.size


def read(path):
    with open(path, encoding="ascii") as f:
        doc = json.load(f)
    if doc.get("aerie_plan") != 1:
        raise ValueError(f"{path}: no plan of version 1")
    return doc


class Broken(Exception):
    pass


def require(holds, plan, table, row, rule):
    if not holds:
        raise Broken(f"{plan['mode']} plan, {table.name} table, row {row}: {rule}")


def first_visible(position, window):
    """The first key that a query sees: in a sliding layer 0 <= q - k < W, the query's own key included."""
    return max(0, position - window + 1) if window else 0


def ancestors(parent, node):
    path = []
    while node >= 0:
        path.append(node)
        node = parent[node]
    return sorted(path)


def check_prefix(plan, table, row, end, begin=0):
    """A row reads [first visible, end) of the cells from begin on, and every page of them is held."""
    position, lo, hi = plan["position"][row], table.lo[row], table.hi[row]
    first = min(max(begin, first_visible(position, table.window)), end)
    require(hi == end or lo == hi, plan, table, row, f"reads cells up to {hi}, expected {end}")
    require(lo == first or lo == hi == end, plan, table, row,
            f"reads cells from {lo}, expected {first}: window {table.window}, position {position}")
    for cell in range(lo, hi):
        require(table.slot(cell) is not None, plan, table, row, f"cell {cell} has no page")


def check_verify(doc, plan, table):
    """Row j is node j of the tree: it reads the prefix, then its ancestors and itself, and nothing else."""
    prefix, parent, at = plan["requests"][0]["prefix_len"], plan["parent"], plan["position"]
    slots = [table.slot(prefix + j) for j in range(plan["rows"])]
    for row in range(len(doc["tree"]) or plan["rows"]):
        path = ancestors(parent, row)
        require(at[row] == prefix + len(path) - 1, plan, table, row,
                f"position {at[row]}, expected prefix + depth")
        check_prefix(plan, table, row, prefix)
        require(table.write[row] == slots[row], plan, table, row,
                f"writes slot {table.write[row]}, cell {prefix + row} is in slot {slots[row]}")
        seen = [slots[a] for a in path if not table.window or at[row] - at[a] < table.window]
        require(table.expand[row] == seen, plan, table, row,
                f"reads slots {table.expand[row]} of the tree, its ancestors are in {seen}")


def check_extend(doc, plan, table):
    """Row i is the token at prefix + i: it reads everything visible up to itself. Where the cached prefix has
    a table of its own ("full prefix"), this one has the new cells only."""
    prefix = plan["requests"][0]["prefix_len"]
    parts = [t for t in plan["tables"] if t["table"] == table.name + " prefix"]
    for row in range(plan["rows"]):
        position = plan["position"][row]
        require(position == prefix + row, plan, table, row, f"position {position}")
        check_prefix(plan, table, row, position + 1, prefix if parts else 0)
        for part in parts:
            check_prefix(plan, Table(plan, part), row, prefix)
        require(table.write[row] == table.slot(position), plan, table, row,
                f"writes slot {table.write[row]}, cell {position} is in slot {table.slot(position)}")


def check(doc):
    done = []
    for plan in doc["plans"]:
        rules = {"verify": check_verify, "extend": check_extend, "decode": check_extend}.get(plan["mode"])
        for t in plan["tables"]:
            table = Table(plan, t)
            if rules and table.name in ("full", "swa"):
                rules(doc, plan, table)
                done.append(f"{plan['mode']} {table.name} ({plan['rows']} rows)")
    if not done:
        raise Broken("there is no plan of the target")
    return done


def main(paths):
    for path in paths:
        doc = read(path)
        try:
            print(f"{path}: step {doc['turn']}.{doc['step']}: " + ", ".join(check(doc)))
        except Broken as broken:
            print(f"{path}: step {doc['turn']}.{doc['step']}: {broken}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
