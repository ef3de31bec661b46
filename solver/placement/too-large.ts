/** Why a model has no place at all although nodes are there: it is larger than any group of devices. */
import { stageBounds } from '../../spec/model-yaml.ts';
import type { PlacementModel, PlacementQuestion, RejectedOption } from '../../spec/plan.ts';
import { splitting } from './degrees.ts';
import { formatGib } from './unit-memory.ts';

/** One sentence with the numbers; undefined where memory is not what keeps it out everywhere it was asked for. */
export function tooLarge(
  model: PlacementModel,
  rejected: readonly RejectedOption[],
  question: PlacementQuestion,
): { model: string; because: string } | undefined {
  const { name } = model.spec;
  const byMemory = rejected.filter((each) => each.model === name && each.constraint === 'device_memory');
  const offers = question.node_kinds.filter(({ node_kind }) =>
    byMemory.some((each) => each.node_kind === node_kind),
  );
  const groups = offers.map(({ devices, node_kind }) => {
    const most = byMemory.find((each) => each.node_kind === node_kind)!;
    const splits = most.engine !== undefined && most.engine !== 'command' && splitting.has(most.engine);
    const { tensor } = model.spec.parallel;
    const pipeline = stageBounds(model.spec).stages_max;
    // The native engine has one device a stage, of whatever kind.
    const count =
      most.engine === 'native'
        ? pipeline
        : devices.kind !== 'gpu' || !splits
          ? 1
          : tensor === 'auto'
            ? devices.count
            : tensor * pipeline;
    return { count, devices, bytes: count * devices.memory_bytes };
  });
  const largest = groups.sort((a, b) => b.bytes - a.bytes)[0];
  if (largest === undefined) return undefined;
  const precision = model.summary?.quantization ?? model.spec.precision;
  const { count, devices } = largest;
  return {
    model: name,
    because:
      `${name}${precision === 'auto' ? '' : ` in ${precision}`} needs ${formatGib(model.weight_bytes)} for its weights alone; ` +
      `the largest group of devices here is ${count} × ${formatGib(devices.memory_bytes)} (${devices.model})`,
  };
}
