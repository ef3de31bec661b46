/** How GPUs could be divided into MIG slices, for people. */
import type { MigProposal, NoProposal } from '../../solver/placement/mig-proposal.ts';

const nothing_changed =
  'nothing was changed: administrators divide GPUs (nvidia-smi mig, gres.conf), and slices are a node kind of their own in the site config';

export function migLines(proposal: MigProposal | NoProposal): string[] {
  if (typeof proposal === 'string') return [`MIG: ${proposal}`];
  const { sliced, whole, gpus_undivided } = proposal;
  const parts = [
    ...sliced.map(({ node_kind, gpus, slices_per_gpu, profile, replicas }) => {
      const whom = replicas
        .map(({ model, count }) => (count === 1 ? model : `${count}× ${model}`))
        .join(', ');
      return `${gpusOf(gpus, node_kind)} as ${slices_per_gpu}× ${profile} for ${whom}`;
    }),
    ...whole.map(
      ({ node_kind, gpus }) => `${gpusOf(gpus, node_kind)} as ${gpus === 1 ? 'it is' : 'they are'}`,
    ),
  ];
  const total = [...sliced, ...whole].reduce((sum, { gpus }) => sum + gpus, 0);
  const instead =
    gpus_undivided === undefined ? 'undivided, there is no room for all' : `${gpus_undivided} undivided`;
  return [
    `MIG: ${parts.join('; ')}. That is ${total} GPU${total === 1 ? '' : 's'} by gpu-hours; ${instead}`,
    `MIG: ${nothing_changed}`,
  ];
}

function gpusOf(count: number, node_kind: string): string {
  return `${count} GPU${count === 1 ? '' : 's'} of ${node_kind}`;
}
