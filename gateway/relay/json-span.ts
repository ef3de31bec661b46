/**
 * Where the value of a top-level key lies in a JSON object that is known to be valid and to have that key. Of
 * several equal keys the last one counts, as in JSON.parse. Keys are compared after unescaping.
 */
export function topLevelSpan(json: Buffer, key: string): { start: number; end: number } {
  let found: { start: number; end: number } | undefined;
  let at = skipSpace(json, 0) + 1;
  for (;;) {
    at = skipSpace(json, at);
    if (json[at] !== 34) break;
    const keyEnd = endOfString(json, at);
    const name = JSON.parse(json.toString('utf8', at, keyEnd)) as string;
    const start = skipSpace(json, skipSpace(json, keyEnd) + 1);
    const end = endOfValue(json, start);
    if (name === key) found = { start, end };
    at = skipSpace(json, end);
    if (json[at] !== 44) break;
    at++;
  }
  if (!found) throw new Error(`the JSON object has no key ${key}`);
  return found;
}

function skipSpace(json: Buffer, at: number): number {
  let offset = at;
  while (offset < json.length && json[offset]! <= 32) offset++;
  return offset;
}

function endOfString(json: Buffer, open: number): number {
  for (let offset = open + 1; offset < json.length; offset++) {
    if (json[offset] === 92) offset++;
    else if (json[offset] === 34) return offset + 1;
  }
  return json.length;
}

function endOfValue(json: Buffer, start: number): number {
  const first = json[start];
  if (first === 34) return endOfString(json, start);
  if (first !== 123 && first !== 91) {
    let offset = start;
    // A number or a literal ends at a comma, a closing bracket or white space.
    while (
      offset < json.length &&
      json[offset]! > 32 &&
      !',]}'.includes(String.fromCharCode(json[offset]!))
    ) {
      offset++;
    }
    return offset;
  }
  let depth = 0;
  for (let offset = start; offset < json.length; offset++) {
    const byte = json[offset]!;
    if (byte === 34) offset = endOfString(json, offset) - 1;
    else if (byte === 123 || byte === 91) depth++;
    else if ((byte === 125 || byte === 93) && --depth === 0) return offset + 1;
  }
  return json.length;
}
