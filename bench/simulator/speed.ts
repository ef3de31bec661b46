/** How fast the simulation runs: prompt and output tokens per second of wall time. */
import { findDevice } from '../../solver/catalog/devices.ts';
import { findModel } from '../../solver/catalog/known-models.ts';
import { simulateServing } from '../../solver/simulator/simulate.ts';
import { drawRequests } from '../../solver/simulator/workload.ts';

export function simulatedTokensPerSecond(): number {
  const requests = drawRequests({
    rate_per_s: 8,
    arrival_cv: 1,
    requests: 20_000,
    input: { kind: 'lognormal', mean: 800, cv: 1 },
    output: { kind: 'lognormal', mean: 400, cv: 1 },
    seed: 1,
  });
  const tokens =
    requests.input_tokens.reduce((a, b) => a + b, 0) + requests.output_tokens.reduce((a, b) => a + b, 0);
  const group = {
    model: findModel('llama-3.1-8b'),
    device: findDevice('H100'),
    engine: 'vllm' as const,
    tp: 1,
    pp: 1,
    dp: 1,
  };
  const runs = Array.from({ length: 3 }, () => {
    const start = performance.now();
    simulateServing([group], requests);
    return (performance.now() - start) / 1e3;
  });
  return tokens / runs.sort((a, b) => a - b)[1]!;
}
