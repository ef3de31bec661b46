/**
 * What a model costs on a device in each of three residencies:
 *
 *   resident   its weights lie on the device always: fastest, and nobody else has the memory
 *   reuse      they are loaded when it is asked, and stay until others need the room (Tangram): as fast once there
 *   streamed   they stay in host memory and cross the link with every iteration: a switch costs nothing
 */
import type { Residency } from '../../spec/plan.ts';

export interface ResidencyQuestion {
  weight_bytes: number;
  /** KV cache and results, in any residency. */
  working_bytes: number;
  /** Of the streaming executor: its buffers, and tensors that stay. */
  arena_bytes: number;
  /** Share of the link traffic that tensors which stay spare. */
  resident_share: number;
  /** Mean requests a second, and the iterations of one. */
  requests_per_s: number;
  iterations_per_request: number;
  /** Time of an iteration with weights on the device, and bytes that a streamed one reads over the link. */
  iteration_s: number;
  iteration_link_bytes: number;
  link_bytes_per_s: number;
  /** How likely its weights are still there when it is asked again. */
  kept_probability: number;
}

export interface ResidencyCost {
  residency: Residency;
  /** Memory of the device that nobody else can count on. */
  device_bytes: number;
  /** Expected wait before the first iteration of a request. */
  switch_s: number;
  iteration_s: number;
  /** All of a request: the wait and its iterations. */
  request_s: number;
  link_bytes_per_s: number;
}

/** The three, in the order above. Where requests come while a model is in use, its memory is in use all the time. */
export function residencyCosts(question: ResidencyQuestion): Record<Residency, ResidencyCost> {
  const { weight_bytes, working_bytes, link_bytes_per_s, requests_per_s, iterations_per_request } = question;
  const load_s = weight_bytes / link_bytes_per_s;
  const cost = (
    residency: Residency,
    device_bytes: number,
    switch_s: number,
    iteration_s: number,
    link_bytes: number,
  ): ResidencyCost => ({
    residency,
    device_bytes,
    switch_s,
    iteration_s,
    request_s: switch_s + iterations_per_request * iteration_s,
    link_bytes_per_s: requests_per_s * link_bytes,
  });
  const missing = 1 - question.kept_probability;
  const streamed_bytes = (1 - question.resident_share) * question.iteration_link_bytes;
  const streamed_s = Math.max(question.iteration_s, streamed_bytes / link_bytes_per_s);
  const resident_s = iterations_per_request * question.iteration_s;
  const active = Math.min(1, requests_per_s * (missing * load_s + resident_s));
  return {
    resident: cost('resident', weight_bytes + working_bytes, 0, question.iteration_s, 0),
    reuse: cost(
      'reuse',
      active * (weight_bytes + working_bytes),
      missing * load_s,
      question.iteration_s,
      missing * weight_bytes,
    ),
    streamed: cost(
      'streamed',
      question.arena_bytes + working_bytes,
      0,
      streamed_s,
      iterations_per_request * streamed_bytes,
    ),
  };
}
