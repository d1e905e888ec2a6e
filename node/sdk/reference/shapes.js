// What a mutation did to the graph of cells, told from the cells before and after: for tests
// that must not be content with graphs in which nothing happens.

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

function below(cell, found = new Set()) {
  for (const read of cell.deps.values()) {
    if (found.has(read.id)) continue;
    found.add(read.id);
    below(read, found);
  }
  return found;
}

function isDiamond(cell, changed) {
  const counted = new Map();
  for (const read of cell.deps.values()) {
    for (const id of below(read)) counted.set(id, (counted.get(id) ?? 0) + 1);
  }
  return [...counted].some(([id, times]) => times > 1 && changed.has(id));
}

function spanningAnswers(cell) {
  return cell.reads.filter(({ spanning }) => spanning).map(({ range, answer }) => [range, answer]);
}

/**
 * Counts cells: `diamond` those that read a changed cell on two ways, `collected` those that
 * lost their last reader or their root but not their row, `halfway` new errors that others
 * read and that a changed cell caused, `spanning` those with another answer to a range over
 * several values of its first field.
 */
export function changes(before, after, rows) {
  const changed = new Set();
  for (const [id, cell] of after) {
    const old = before.get(id);
    if (old !== undefined && !same(old.outcome, cell.outcome)) changed.add(id);
  }
  const read = new Set();
  for (const cell of after.values()) for (const id of cell.deps.keys()) read.add(id);
  const seen = { changed: changed.size, diamond: 0, collected: 0, halfway: 0, spanning: 0 };
  for (const [id, cell] of before) {
    if (after.has(id)) continue;
    const wasRow = cell.of.kind === "each" && rows.get(cell.of.each, Object.values(cell.key)[0]) === null;
    if (!wasRow) seen.collected += 1;
  }
  for (const [id, cell] of after) {
    const old = before.get(id);
    const causes = [...cell.deps.keys()].some((dep) => changed.has(dep));
    if (cell.outcome.error && read.has(id) && causes && !same(old?.outcome, cell.outcome)) seen.halfway += 1;
    if (isDiamond(cell, changed)) seen.diamond += 1;
    if (old && !same(spanningAnswers(old), spanningAnswers(cell))) seen.spanning += 1;
  }
  return seen;
}
