// A tree of comments: each knows how many replies are below it, and when the last one came.
import { derived, fault, mutation, query, t, table } from "@flower/sdk";

const comments = table(
  "comments",
  { parent: t.id("comments").optional(), author: t.text(40), text: t.text(2000), at: t.time() },
  { indexes: { byParent: ["parent", "at"] } },
);

// Replies below a comment, on all levels: those to it, and the replies below each of them.
// A new reply is counted by the comments above it and by no other.
const replies = derived(
  "replies",
  { comment: t.id(comments) },
  t.int(0),
  (db, { comment }, get) =>
    db.comments.byParent
      .range({ parent: comment })
      .sum((reply) => 1 + get(replies, { comment: reply.id })),
  { materialize: { each: comments }, index: "byCount" },
);

// When something was last said at or below a comment.
const latest = derived("latest", { comment: t.id(comments) }, t.time(), (db, { comment }, get) => {
  let last = db.comments.get(comment).at;
  for (const reply of db.comments.byParent.range({ parent: comment })) {
    last = Math.max(last, get(latest, { comment: reply.id }));
  }
  return last;
}, { materialize: { each: comments } });

// Says something, as a reply or as the beginning of a new thread. Answers the comment's id.
export const say = mutation(
  {
    args: { parent: t.id(comments).optional(), author: t.text(40), text: t.text(2000) },
    returns: t.id(comments),
    errors: { "no-comment": 404 },
  },
  (tx, { parent, author, text }) => {
    if (parent && !tx.comments.get(parent)) throw fault("no-comment", { data: { parent } });
    return tx.comments.insert({ parent, author, text, at: tx.now });
  },
);

// Removes a comment and all that is below it. Answers how many comments that were.
export const remove = mutation(
  { args: { comment: t.id(comments) }, returns: t.int(1), errors: { "no-comment": 404 } },
  (tx, { comment }) => {
    if (!tx.comments.get(comment)) throw fault("no-comment", { data: { comment } });
    const removed = 1 + tx.get(replies, { comment });
    const waiting = [comment];
    while (waiting.length > 0) {
      const next = waiting.pop();
      for (const { id } of tx.comments.byParent.range({ parent: next })) waiting.push(id);
      tx.comments.delete(next);
    }
    return removed;
  },
);

// The threads, those first in which something was said last; or the replies to a comment.
export const list = query({ args: { parent: t.id(comments).optional() } }, (db, { parent }) =>
  db.comments.byParent
    .range({ parent: parent ?? null })
    .all()
    .map((comment) => ({
      ...comment,
      replies: db.get(replies, { comment: comment.id }),
      latest: db.get(latest, { comment: comment.id }),
    }))
    .sort((a, b) => b.latest - a.latest),
);

// The comments with the most replies: a range read, however many comments there are.
export const busiest = query({ args: { n: t.int(1, 100).optional() } }, (db, { n }) =>
  db.replies.byCount.range().desc().take(n ?? 10).all(),
);
