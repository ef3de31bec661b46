/**
 * Reversible state: numbers that return to their old value when search backs out of a level. Each cell is
 * logged at most once a level (time-stamping), so the cost of a level is the number of cells it touched.
 */
export class Trail {
  #values = new Float64Array(64);
  #stamps = new Float64Array(64);
  #cells = 0;
  #logCells = new Int32Array(256);
  #logValues = new Float64Array(256);
  #logged = 0;
  #levels: number[] = [];
  #stamp = 1;

  /** A new reversible number. Cells live as long as the trail. */
  cell(initial: number): number {
    if (this.#cells === this.#values.length) {
      this.#values = grown(this.#values);
      this.#stamps = grown(this.#stamps);
    }
    this.#values[this.#cells] = initial;
    return this.#cells++;
  }

  get(cell: number): number {
    return this.#values[cell]!;
  }

  set(cell: number, value: number): void {
    if (this.#values[cell] === value) return;
    if (this.#stamps[cell] !== this.#stamp && this.#levels.length > 0) {
      if (this.#logged === this.#logCells.length) {
        const cells = new Int32Array(2 * this.#logged);
        cells.set(this.#logCells);
        this.#logCells = cells;
        this.#logValues = grown(this.#logValues);
      }
      this.#logCells[this.#logged] = cell;
      this.#logValues[this.#logged++] = this.#values[cell]!;
      this.#stamps[cell] = this.#stamp;
    }
    this.#values[cell] = value;
  }

  /** Number of open levels. */
  get level(): number {
    return this.#levels.length;
  }

  push(): void {
    this.#levels.push(this.#logged);
    this.#stamp++;
  }

  /** Restores every cell to what it was at the matching `push`. @throws RangeError without an open level. */
  pop(): void {
    const start = this.#levels.pop();
    if (start === undefined) throw new RangeError('pop without push');
    while (this.#logged > start) {
      const at = --this.#logged;
      this.#values[this.#logCells[at]!] = this.#logValues[at]!;
    }
    this.#stamp++;
  }

  popTo(level: number): void {
    while (this.level > level) this.pop();
  }
}

function grown(array: Float64Array): Float64Array<ArrayBuffer> {
  const larger = new Float64Array(2 * array.length);
  larger.set(array);
  return larger;
}
