/** What plans expect of prefill and decode pools beside a simulation of both. */
import { describe, expect, it } from 'vitest';
import { findDevice } from '../../../solver/catalog/devices.ts';
import { findModel } from '../../../solver/catalog/known-models.ts';
import { LatencyModel } from '../../../solver/simulator/latency.ts';
import { simulateDisaggregated } from '../../../solver/simulator/simulate.ts';
import { drawRequests } from '../../../solver/simulator/workload.ts';

const kinds = [
  ['llama-3.1-8b', 'A100', 'vllm'],
  ['llama-2-13b', 'GH200', 'vllm'],
  ['llama-3.1-8b', 'Xeon-8480+', 'openvino'],
] as const;

describe.each(kinds)('%s on %s with %s', (name, device, engine) => {
  const group = { model: findModel(name), device: findDevice(device), engine, tp: 1, pp: 1, dp: 1 };
  const prompts = new LatencyModel(group, 'prefill');
  const answers = new LatencyModel(group, 'decode');
  const whole = new LatencyModel(group);

  it.each([
    [800, 200],
    [4000, 100],
  ])('%d tokens in and %d out', (input_tokens, output_tokens) => {
    const most = Math.min(
      prompts.maxRate({ input_tokens, output_tokens: 1 }),
      answers.maxRate({ input_tokens, output_tokens }),
    );
    for (const share of [0.1, 0.5, 0.7]) {
      const rate_per_s = share * most;
      const { report } = simulateDisaggregated(
        { prefill: group, decode: group },
        drawRequests({
          rate_per_s,
          arrival_cv: 1,
          requests: 2000,
          seed: 3,
          input: { kind: 'fixed', tokens: input_tokens },
          output: { kind: 'fixed', tokens: output_tokens },
        }),
      );
      const { ttft_ms } = prompts.estimate({ rate_per_s, input_tokens, output_tokens: 1 });
      const decoded = answers.estimate({ rate_per_s, input_tokens, output_tokens });
      const at = `at ${share} of ${most.toPrecision(3)}/s`;
      expect(
        Math.abs(ttft_ms / report.ttft_ms.mean - 1),
        `TTFT ${ttft_ms}, ${report.ttft_ms.mean} ${at}`,
      ).toBeLessThan(0.25);
      expect(
        Math.abs(decoded.tpot_ms / report.tpot_ms.mean - 1),
        `TPOT ${decoded.tpot_ms}, ${report.tpot_ms.mean} ${at}`,
      ).toBeLessThan(0.15);
      expect(decoded.power_w).toBeGreaterThan(0);
      // Nobody's prompt stands in the way of those that decode.
      expect(decoded.tpot_ms).toBeLessThan(
        whole.estimate({ rate_per_s, input_tokens, output_tokens }).tpot_ms,
      );
    }
  });
});
