import { describe, expect, it } from 'vitest';
import { findDevice, findInterconnect } from '../../../solver/catalog/devices.ts';
import { findModel } from '../../../solver/catalog/known-models.ts';
import { storedWeights_bytes } from '../../../solver/catalog/model-shape.ts';
import { activationSize_bytes, fitActivations } from '../../../solver/partition/activation-size.ts';
import { withMeasuredRanges } from '../../../solver/partition/operator-graph.ts';
import { predictGraph } from '../../../solver/partition/predict-graph.ts';
import { calibrationFor } from '../../../solver/simulator/calibration.ts';
import { StepModel } from '../../../solver/simulator/step-model.ts';

const device = findDevice('A100');
const calibration = calibrationFor('vllm', device.family);
const graphOf = (name: string, rows = 16) =>
  predictGraph({
    shape: findModel(name),
    device,
    calibration,
    rows,
    context_tokens: 1024,
    kv_bits: 16,
  });
const total = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0);

describe('the operator graph', () => {
  it('holds every weight of dense models and of those with experts', () => {
    for (const name of ['llama-3.1-70b', 'mixtral-8x7b', 'llama-4-maverick']) {
      const shape = findModel(name);
      const { operators } = graphOf(name);
      expect(operators).toHaveLength(2 * shape.n_layer + 2);
      expect(
        total(operators.map(({ weight_bytes }) => weight_bytes)) / storedWeights_bytes(shape),
      ).toBeCloseTo(1, 3);
    }
  });

  it('takes the time of a step of the serving simulator, but for what a step has once', () => {
    for (const name of ['llama-3.1-70b', 'mixtral-8x7b']) {
      const shape = findModel(name);
      const rows = 16;
      const model = new StepModel({
        shape,
        device,
        tp: 1,
        pp: 1,
        kv_bits: 16,
        calibration,
        interconnect: findInterconnect('slingshot-11'),
      });
      const step_s =
        model.tokenTime_s(rows) +
        model.outputTime_s(rows) +
        model.decodeAttention_s(rows * 1024, 0) +
        calibration.engine.layer_s * shape.n_layer;
      const graph_s = total(graphOf(name, rows).operators.map(({ compute_s }) => compute_s));
      expect(graph_s / step_s).toBeGreaterThan(0.98);
      expect(graph_s / step_s).toBeLessThan(1.02);
    }
  });

  it('has what operators were measured to take, and shares what stages took among the others', () => {
    const { operators } = graphOf('llama-3.1-8b');
    const predicted_s = (begin: number, end: number): number =>
      total(operators.slice(begin, end).map(({ compute_s }) => compute_s));
    const measured = withMeasuredRanges(operators, [
      { begin: 0, end: 3, compute_s: 0.006, operators_s: [0.001, 0.003, 0.002] },
      { begin: 3, end: 5, compute_s: 2 * predicted_s(3, 5) },
    ]);
    expect(measured.slice(0, 3).map(({ compute_s }) => compute_s)).toEqual([0.001, 0.003, 0.002]);
    for (const index of [3, 4])
      expect(measured[index]!.compute_s).toBeCloseTo(2 * operators[index]!.compute_s, 12);
    const overall = (0.006 + 2 * predicted_s(3, 5)) / predicted_s(0, 5);
    expect(measured.at(-1)!.compute_s).toBeCloseTo(overall * operators.at(-1)!.compute_s, 12);
    // Of another cut, and so of no use.
    const wrong = withMeasuredRanges(operators, [
      { begin: 0, end: 3, compute_s: predicted_s(0, 3), operators_s: [1, 2] },
    ]);
    expect(wrong[1]!.compute_s).toBeCloseTo(operators[1]!.compute_s, 12);
  });
});

describe('activation sizes (Eq. 3)', () => {
  it('finds the α of compressed activations, and the line of plain ones', () => {
    const compressed = [16, 32, 64, 128].map((rows) => ({ rows, ratio: 1 + 0.4 * Math.log(rows / 8) }));
    const law = fitActivations(8, compressed);
    expect(law.law).toBe('log');
    expect(law.alpha).toBeCloseTo(0.4, 9);
    expect(law.error).toBeLessThan(1e-9);
    expect(activationSize_bytes(1000, law, 8)).toBe(1000);
    const plain = fitActivations(
      8,
      [16, 32, 64].map((rows) => ({ rows, ratio: rows / 8 })),
    );
    expect(plain.law).toBe('linear');
    expect(activationSize_bytes(1000, plain, 64)).toBe(8000);
    expect(fitActivations(8, []).law).toBe('linear');
  });
});
