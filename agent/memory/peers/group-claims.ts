const groupStates = {
  free: 0,
  /** Read from the file. */
  file: 1,
  /** On its way from a peer; nothing of it is in the pool. */
  fetching: 2,
  /** Whole, verified, and being written to its places. */
  placing: 3,
  placed: 4,
  /** No peer could bring it: to be read from the file. */
  returned: 5,
  /** Taken back from the file, whose threads hang: they write nothing of it any more. */
  recalled: 6,
} as const;

const stages = { told: 0, seen: 1, begun: 2 } as const;

/**
 * Who brings which group of tensors: the threads that read the file take groups from the front, the one that fetches
 * from peers takes them from the back, so that each brings as much as its rate allows and both end together. Words in
 * shared memory: a group changes hands by compare and exchange, and what a peer has promised can be taken back from it
 * at any time before it writes to the pool.
 */
export class GroupClaims {
  readonly shared: SharedArrayBuffer;
  readonly #states: Int32Array;
  readonly #stop: Int32Array;
  readonly #stage: Int32Array;
  readonly #bytes: BigInt64Array;
  /** Of each group: the file's threads that write to its places now, and its units that they have placed. */
  readonly #writers: Int32Array;
  readonly #units: Int32Array;

  /** @param count of groups; or the memory of claims that another thread made */
  constructor(count: number | SharedArrayBuffer) {
    this.shared = typeof count === 'number' ? new SharedArrayBuffer(16 + 12 * count) : count;
    const groups = (this.shared.byteLength - 16) / 12;
    this.#bytes = new BigInt64Array(this.shared, 0, 1);
    this.#stop = new Int32Array(this.shared, 8, 1);
    this.#stage = new Int32Array(this.shared, 12, 1);
    this.#states = new Int32Array(this.shared, 16, groups);
    this.#writers = new Int32Array(this.shared, 16 + 4 * groups, groups);
    this.#units = new Int32Array(this.shared, 16 + 8 * groups, groups);
  }

  /** Nobody offers it: it comes from the file. */
  withhold(group: number): void {
    Atomics.store(this.#states, group, groupStates.file);
  }

  /** @returns whether the file's threads may read it */
  takeForFile(group: number): boolean {
    const before = Atomics.compareExchange(this.#states, group, groupStates.free, groupStates.file);
    return before === groupStates.free || before === groupStates.file;
  }

  /** A unit of it was read. @returns false where it was recalled meanwhile: then nothing may be written */
  beginUnit(group: number): boolean {
    Atomics.add(this.#writers, group, 1);
    // Whoever recalls it changes its state first, and looks for writers then.
    if (Atomics.load(this.#states, group) === groupStates.file) return true;
    Atomics.sub(this.#writers, group, 1);
    return false;
  }

  /** @param isPlaced all of the unit is in its places */
  endUnit(group: number, isPlaced: boolean): void {
    if (isPlaced) Atomics.add(this.#units, group, 1);
    Atomics.sub(this.#writers, group, 1);
  }

  /** @returns whether nothing of it is written any more by the file's threads, whatever they have in hand */
  recall(group: number): boolean {
    this.#change(group, 'file', 'recalled');
    return Atomics.load(this.#writers, group) === 0;
  }

  /** Whether all of it is in its places. @param units that it has */
  isWhole(group: number, units: number): boolean {
    const isPlaced = Atomics.load(this.#states, group) === groupStates.placed;
    return isPlaced || Atomics.load(this.#units, group) >= units;
  }

  /** @returns the last group that is free and of which `has` says so; undefined where there is none, or it is over */
  takeForPeer(has: (group: number) => boolean): number | undefined {
    for (let group = this.#states.length - 1; group >= 0 && !this.stopped; group--) {
      if (Atomics.load(this.#states, group) !== groupStates.free || !has(group)) continue;
      if (!this.#change(group, 'free', 'fetching')) continue;
      // Whoever stops it may have looked at this group before it changed hands.
      if (!this.stopped) return group;
      this.giveBack(group);
    }
    return undefined;
  }

  /** @returns false where it was taken back: then nothing may be written */
  beginPlacing(group: number): boolean {
    if (!this.#change(group, 'fetching', 'placing')) return false;
    if (!this.stopped) return true;
    this.giveBack(group);
    return false;
  }

  placed(group: number): void {
    this.#change(group, 'placing', 'placed');
  }

  giveBack(group: number): void {
    if (!this.#change(group, 'fetching', 'returned')) this.#change(group, 'placing', 'returned');
  }

  /** Takes back what is on its way; no further group goes to peers. */
  stop(): void {
    Atomics.store(this.#stop, 0, 1);
    for (let group = 0; group < this.#states.length; group++) this.#change(group, 'fetching', 'returned');
  }

  get stopped(): boolean {
    return Atomics.load(this.#stop, 0) === 1;
  }

  /** How far the side of the peers is: its thread has seen the load; peers were asked and took what they take first. */
  reach(stage: 'seen' | 'begun'): void {
    Atomics.store(this.#stage, 0, stages[stage]);
  }

  get stage(): keyof typeof stages {
    const reached = Atomics.load(this.#stage, 0);
    return reached === stages.begun ? 'begun' : reached === stages.seen ? 'seen' : 'told';
  }

  /** Whether peers still have groups. */
  get pending(): boolean {
    return this.in('fetching', 'placing').length > 0;
  }

  /** Groups in one of these states. */
  in(...states: (keyof typeof groupStates)[]): number[] {
    const wanted: number[] = states.map((state) => groupStates[state]);
    return [...this.#states.keys()].filter((group) => wanted.includes(Atomics.load(this.#states, group)));
  }

  /** Bytes came from a peer: not yet verified, nor in the pool. */
  received(bytes: number): void {
    Atomics.add(this.#bytes, 0, BigInt(bytes));
  }

  get received_bytes(): number {
    return Number(Atomics.load(this.#bytes, 0));
  }

  #change(group: number, from: keyof typeof groupStates, to: keyof typeof groupStates): boolean {
    const [before, after] = [groupStates[from], groupStates[to]];
    return Atomics.compareExchange(this.#states, group, before, after) === before;
  }
}
