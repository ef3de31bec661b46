import { baseOf, blockColumns, type Numbers } from './day-block.ts';
import { summedColumns } from './hour-sums.ts';

/** Of a group: its sums, and its first and last arrival. */
const width = summedColumns.length + 2;
const [first, last] = [width - 2, width - 1];

/** A group of series within one part of the time. */
interface Place {
  readonly group: number;
  /** Any hour of that part, counted from 1970. */
  readonly hour: number;
}

/** Sums of groups within parts of the time, one after the other. */
export interface PlacedSums {
  groups: Int32Array;
  /** Any hour of the part of the time of each. */
  hours: Float64Array;
  /** As many of each: its sums, its first and its last arrival. */
  values: Float64Array;
}

/** Adds up hours of series by group and by part of the time. */
export class GroupSums {
  readonly #groupOf: Int32Array;
  readonly #groups: number;
  readonly #partOf: (hour: number) => number;
  /** Of each part of the time, the index of each group in `#places`. */
  readonly #parts = new Map<number, Int32Array>();
  readonly #places: Place[] = [];
  #values = new Float64Array(64 * width);
  /** The hour of the last row, and the places of its part of the time. */
  #hour = Number.NaN;
  #ofHour: Int32Array = new Int32Array(0);

  /**
   * @param groupOf group of a series by its reference, -1 for those that do not count
   * @param partOf the part of the time that an hour is in
   */
  constructor(groupOf: Int32Array, groups: number, partOf: (hour: number) => number) {
    this.#groupOf = groupOf;
    this.#groups = groups;
    this.#partOf = partOf;
  }

  /** @param row hour, series, sums, first and last, as of `hours` */
  addRow(row: readonly number[]): void {
    const at = width * this.#placeOf(row[0]!, row[1]!);
    if (at < 0) return;
    const values = this.#values;
    for (let column = 0; column < first; column++) values[at + column]! += row[2 + column]!;
    values[at + first] = Math.min(values[at + first]!, row[2 + first]!);
    values[at + last] = Math.max(values[at + last]!, row[2 + last]!);
  }

  addBlock(day: number, rows: number, columns: readonly (Numbers | undefined)[]): void {
    const [hours, series] = columns;
    const places = new Int32Array(rows);
    for (let row = 0; row < rows; row++)
      places[row] = width * this.#placeOf(baseOf(0, day) + (hours?.[row] ?? 0), series?.[row] ?? 0);
    const values = this.#values;
    for (let column = 2; column < blockColumns - 2; column++) {
      const numbers = columns[column];
      if (numbers !== undefined) addColumn(values, places, column - 2, numbers);
    }
    const base = baseOf(blockColumns - 1, day);
    const [firsts, lasts] = columns.slice(-2);
    for (let row = 0; row < rows; row++) {
      const at = places[row]!;
      if (at < 0) continue;
      values[at + first] = Math.min(values[at + first]!, base + (firsts?.[row] ?? 0));
      values[at + last] = Math.max(values[at + last]!, base + (lasts?.[row] ?? 0));
    }
  }

  /** All of it: later rows change nothing of what this returns. */
  placed(): PlacedSums {
    return {
      groups: Int32Array.from(this.#places, ({ group }) => group),
      hours: Float64Array.from(this.#places, ({ hour }) => hour),
      values: this.#values.slice(0, width * this.#places.length),
    };
  }

  /** @returns negative for a series that does not count */
  #placeOf(hour: number, series_ref: number): number {
    const group = this.#groupOf[series_ref] ?? -1;
    if (group < 0) return -1;
    if (hour !== this.#hour) this.#enter(hour);
    const places = this.#ofHour;
    if (places[group]! < 0) places[group] = this.#newPlace({ group, hour });
    return places[group]!;
  }

  /** Rows come by hour: thousands of them have the same. */
  #enter(hour: number): void {
    const part = this.#partOf(hour);
    let places = this.#parts.get(part);
    if (!places) {
      places = new Int32Array(this.#groups).fill(-1);
      this.#parts.set(part, places);
    }
    this.#hour = hour;
    this.#ofHour = places;
  }

  #newPlace(place: Place): number {
    const index = this.#places.push(place) - 1;
    if (width * (index + 1) > this.#values.length) {
      const larger = new Float64Array(2 * this.#values.length);
      larger.set(this.#values);
      this.#values = larger;
    }
    this.#values[width * index + first] = Number.POSITIVE_INFINITY;
    this.#values[width * index + last] = Number.NEGATIVE_INFINITY;
    return index;
  }
}

function addColumn(values: Float64Array, places: Int32Array, column: number, numbers: Numbers): void {
  for (let row = 0; row < places.length; row++) {
    const at = places[row]!;
    if (at >= 0) values[at + column]! += numbers[row]!;
  }
}
