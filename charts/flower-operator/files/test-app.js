// The application of `helm test`: it writes a row and reads it back.
import { mutation, t, table } from "@flower/sdk";

table("greetings", { name: t.text(80) });

export const greet = mutation(
  { args: { name: t.text(80) }, returns: t.text(80) },
  (tx, { name }) => {
    const id = tx.greetings.insert({ name });
    return tx.greetings.get(id).name;
  },
);
