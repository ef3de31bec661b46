import { expect, test } from 'vitest';
import { AnswerStalls, type GatewayAnswers } from '../../../control/pipelines/answer-stalls.ts';

/** A gateway that tells of its last 64 answers. */
class Told {
  readonly started_ms: number;
  readonly #all: [number, number][] = [];

  constructor(started_ms = 0) {
    this.started_ms = started_ms;
  }

  answered(count: number, pass_ms: number, at_ms: number): void {
    for (let answer = 0; answer < count; answer++) this.#all.push([at_ms + answer, pass_ms]);
  }

  read(gateway = 1): GatewayAnswers {
    const answers = { total: this.#all.length, last: this.#all.slice(-64) };
    return { gateway, started_ms: this.started_ms, answers };
  }
}

test('a stall lasts from one look to another, and its end is told once', () => {
  const stalls = new AnswerStalls();
  const told = new Told();
  told.answered(40, 20, 1000);
  expect(stalls.observe([told.read()])).toBeUndefined();
  expect(stalls.now).toBeUndefined();
  told.answered(3, 31, 5000);
  expect(stalls.observe([told.read()])).toBeUndefined();
  expect(stalls.now).toEqual({ began_ms: 5000, baseline_ms: 20 });
  // Nothing new: what was looked at is not looked at again.
  expect(stalls.observe([told.read()])).toBeUndefined();
  told.answered(1, 25, 6000);
  stalls.observe([told.read()]);
  expect(stalls.now).toEqual({ began_ms: 5000, baseline_ms: 20 });
  told.answered(1, 24, 7000);
  expect(stalls.observe([told.read()])).toEqual({ began_ms: 5000, recovered_ms: 7000, baseline_ms: 20 });
  expect(stalls.now).toBeUndefined();
  expect(stalls.observe([told.read()])).toBeUndefined();
});

test('one that came and went between two looks is no news', () => {
  const stalls = new AnswerStalls();
  const told = new Told();
  told.answered(40, 20, 1000);
  stalls.observe([told.read()]);
  told.answered(1, 100, 2000);
  told.answered(1, 20, 3000);
  expect(stalls.observe([told.read()])).toBeUndefined();
  expect(stalls.now).toBeUndefined();
});

test('another pipeline has another normal', () => {
  const stalls = new AnswerStalls();
  const told = new Told();
  told.answered(40, 20, 1000);
  stalls.observe([told.read()]);
  stalls.reset();
  told.answered(40, 50, 2000);
  stalls.observe([told.read()]);
  expect(stalls.now).toBeUndefined();
});

test('answers of several gateways count in the order in which they ended, and those of one that began again anew', () => {
  const stalls = new AnswerStalls();
  const [one, other] = [new Told(), new Told()];
  one.answered(40, 20, 1000);
  other.answered(40, 20, 1000);
  stalls.observe([one.read(1), other.read(2)]);
  one.answered(1, 20, 9000);
  other.answered(1, 90, 5000);
  stalls.observe([one.read(1), other.read(2)]);
  expect(stalls.now).toBeUndefined();
  const again = new Told(10_000);
  again.answered(2, 90, 11_000);
  stalls.observe([again.read(1), other.read(2)]);
  expect(stalls.now).toEqual({ began_ms: 11_000, baseline_ms: 20 });
});
