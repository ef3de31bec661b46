import { admitTo } from '../../../solver/sharing/admission.ts';
import type { DeviceView, RequestView } from '../../../solver/sharing/device-view.ts';
import { lanesOf } from '../../../solver/sharing/lanes.ts';
import { nextIteration } from '../../../solver/sharing/next-iteration.ts';
import type { SharingSettings } from '../../../solver/sharing/settings.ts';
import { tokenDeadline } from '../../../solver/sharing/slo.ts';

export interface Lateness {
  request: string;
  token: number;
  late_ms: number;
}

/**
 * A device worker at its plainest, for tests: real requests, one at a time through the live decisions, token by token,
 * and a note of everybody who was late.
 */
export class PlainDevice {
  readonly device: DeviceView;
  readonly #settings: SharingSettings;
  readonly late: Lateness[] = [];
  now_ms = 0;
  admitted = 0;
  refused = 0;
  iterations = 0;

  constructor(device: DeviceView, settings: SharingSettings) {
    this.device = device;
    this.#settings = settings;
  }

  /** Works until `until_ms`, or until nothing is left to do. */
  run(until_ms: number): void {
    while (this.now_ms < until_ms) {
      const next = nextIteration(
        lanesOf(this.device.instances, this.now_ms, this.#settings),
        this.now_ms,
        this.#settings,
      );
      if ('at_ms' in next) {
        this.now_ms = Math.min(until_ms, next.at_ms);
        continue;
      }
      this.iterations++;
      const instance = this.device.instances[next.lane]!;
      const batch =
        next.prompt === undefined
          ? instance.requests.filter(
              ({ prefill_tokens_left, available_at_ms }) =>
                prefill_tokens_left === 0 && available_at_ms <= this.now_ms,
            )
          : instance.requests.filter(({ id }) => id === next.prompt!.request);
      // Estimates are true but for what they were raised by.
      this.now_ms += next.ms / (1 + this.#settings.overestimate);
      for (const request of batch) {
        if (next.prompt !== undefined) {
          request.prefill_tokens_left -= next.tokens;
          if (request.prefill_tokens_left > 0) continue;
        }
        this.#token(request);
      }
      instance.requests = instance.requests.filter(
        (request) => request.output_tokens < request.expected_output_tokens,
      );
    }
  }

  /** At the end of an iteration or, as live, in the middle of one: the decision sees the iteration that runs. */
  offer(at: number, request: RequestView): boolean {
    const instance = this.device.instances[at]!;
    if (request.background === true) {
      instance.requests.push(request);
      return true;
    }
    const admission = admitTo(this.device, instance, request, this.now_ms, this.#settings);
    if (admission.admit) {
      instance.requests.push(request);
      this.admitted++;
    } else this.refused++;
    return admission.admit;
  }

  #token(request: RequestView): void {
    const late_ms = this.now_ms - tokenDeadline(request);
    if (late_ms > 1e-3 && request.background !== true)
      this.late.push({ request: request.id, token: request.output_tokens, late_ms });
    request.output_tokens++;
    request.first_token_ms ??= this.now_ms;
  }
}
