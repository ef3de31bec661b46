/** What may be promised of replicas on preemptible nodes, and by what, in words. */
import { guarantee_days, type ModelGuarantee } from '../../control/scavenger/guarantees.ts';
import { formatDuration } from './quantities.ts';

/** `m: at least 6 of 8 replicas on idle nodes 0.97 of the time, beside 1 on stable nodes (…)`. */
export function describeGuarantee(guarantee: ModelGuarantee): string {
  const { model, at_least, replicas, probability, stable } = guarantee;
  const beside = stable > 0 ? `, beside ${stable} on stable nodes` : '';
  return `${model}: at least ${at_least} of ${replicas} replica(s) on preemptible nodes ${probability.toFixed(2)} of the time${beside} (${describeSource(guarantee)})`;
}

function describeSource({ source, seen, node_kinds }: ModelGuarantee): string {
  if (source === 'assumed')
    return 'assumed: no replica was seen there yet; one departure in 8 hours, back after 5 min';
  const { departures, preemptions, serving_hours, absences, absent_s } = seen;
  const back = absences > 0 ? `, back after ${formatDuration((1000 * absent_s) / absences)} on average` : '';
  const whose = source === 'model' ? 'its replicas' : 'replicas of other models';
  return `by the last ${guarantee_days} days of ${whose} on ${node_kinds.join(', ')}: ${departures} left in ${serving_hours.toFixed(1)} h of serving, ${preemptions} preempted${back}`;
}
