/** Characters kept of a name that somebody made up. Lower: less to store; higher: longer typing errors can be told. */
const name_characters_max = 256;
/** Controls, what reverses or joins text, what no font shows, and halves of characters. */
const unprintable = /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}]/gu;

/**
 * A name that nothing is known of, as it may stand in ledgers, labels and logs: no longer than a name can be, and with
 * nothing in it that a terminal would take for an order.
 */
export function printableName(name: string): string {
  // Cut first: what is made up may have millions of characters.
  const cut = name.length > name_characters_max ? `${name.slice(0, name_characters_max - 1)}…` : name;
  return cut.replace(unprintable, '\ufffd');
}

/** The same in quotes, for messages. */
export function quoteName(name: string): string {
  return JSON.stringify(printableName(name));
}
