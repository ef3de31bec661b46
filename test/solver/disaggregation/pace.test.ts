import { expect, test } from 'vitest';
import { IterationPace, LinkPace, supposedLink } from '../../../solver/disaggregation/pace.ts';

test('the pace of prompts is that of iterations with prompts, and a step that of those that decode alone', () => {
  const pace = new IterationPace();
  expect(pace.prefill_tokens_per_s).toBeUndefined();
  expect(pace.step_s).toBeUndefined();
  for (let at = 0; at < 50; at++) {
    pace.observe(512, 3, 0.5);
    pace.observe(0, 8, 0.02);
    // Mostly others' tokens: it says nothing of prompts, and is no step.
    pace.observe(16, 16, 3);
  }
  expect(pace.prefill_tokens_per_s).toBeCloseTo(1024);
  expect(pace.step_s).toBeCloseTo(0.02);
  for (let at = 0; at < 50; at++) pace.observe(512, 0, 1);
  expect(pace.prefill_tokens_per_s).toBeCloseTo(512, -1);
});

test('a link is known by what each transfer takes and by its rate, and forgotten after a while', () => {
  const link = new LinkPace();
  expect(link.link(0)).toEqual(supposedLink);
  const took_s = (bytes: number): number => 0.004 + bytes / 80e6;
  for (let at = 0; at < 60; at++) {
    link.observe(1000, took_s(1000), at);
    link.observe(64e6, took_s(64e6), at);
  }
  const { transfer_s, bytes_per_s } = link.link(60);
  expect(transfer_s).toBeCloseTo(0.004, 3);
  expect(bytes_per_s / 80e6).toBeCloseTo(1, 1);
  expect(link.link(60 + 119)).not.toEqual(supposedLink);
  expect(link.link(60 + 121)).toEqual(supposedLink);
});

test('small transfers alone say nothing of the rate', () => {
  const link = new LinkPace();
  for (let at = 0; at < 100; at++) link.observe(10_000, 0.03, at);
  expect(link.link(100).bytes_per_s).toBe(supposedLink.bytes_per_s);
  expect(link.link(100).transfer_s).toBeCloseTo(0.03, 3);
});
