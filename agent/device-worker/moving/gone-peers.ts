/** Between two looks at who is there, ms. Lower: ways of peers that are gone are closed sooner. */
export const gone_look_ms = 30_000;

/** Tells peers that have left from those that the mesh only does not know for a moment. */
export class GonePeers {
  #missing = new Set<string>();

  /**
   * @param held sessions that there are ways to, or from
   * @param known sessions that there are
   * @returns those that were missing at the last look, too
   */
  look(held: Iterable<string>, known: ReadonlySet<string>): string[] {
    const missing = new Set([...held].filter((session_id) => !known.has(session_id)));
    const gone = [...missing].filter((session_id) => this.#missing.has(session_id));
    this.#missing = missing;
    return gone;
  }
}
