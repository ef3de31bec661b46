/** The model.yaml of one site's share: that of the whole with fewer replicas, and with what it is a share of. Pure. */
import { stringify } from 'yaml';
import { kindsAskedAt } from '../../solver/sites/kind-names.ts';
import type { DeploymentSpec, Objective } from '../../spec/model-yaml.ts';
import type { Share, SiteShare } from '../../spec/site-share.ts';
import type { YamlMapping } from './model-file.ts';

export interface Shared {
  /** As `readWhole` has it, and the same with defaults. */
  whole: YamlMapping;
  spec: DeploymentSpec;
  share: Share;
  /** Instead of the one in the file. */
  objective?: Objective;
}

/** @param nodeKinds of the site, by its own names */
export function shareDocument(
  { whole, spec, share, objective }: Shared,
  { site, models, gpu_hours }: SiteShare,
  nodeKinds: readonly string[],
): string {
  const { site: _site, sites: _sites, budget: _budget, ...rest } = whole;
  const modelThere = (written: YamlMapping, at: number): YamlMapping[] => {
    const asked = spec.models[at]!;
    const own = models.find(({ name }) => name === asked.name);
    if (own === undefined) return [];
    const { replicas, min_stable_replicas, scavenger_replicas, request_share } = own;
    const { workload, devices } = asked;
    const there: YamlMapping = {
      ...written,
      replicas,
      min_stable_replicas,
      scavenger: { replicas: scavenger_replicas },
    };
    if (workload) there.workload = { ...workload, rate_per_s: workload.rate_per_s * request_share };
    if (devices.node_kinds.length > 0)
      there.devices = { ...devices, node_kinds: kindsAskedAt(site, asked, nodeKinds) };
    return [there];
  };
  const document: YamlMapping = { ...rest };
  if (objective !== undefined) document.objective = objective;
  if (gpu_hours !== undefined) document.budget = { gpu_hours };
  document.models = (whole.models as YamlMapping[]).flatMap(modelThere);
  document.share = share;
  const text = stringify(document, { aliasDuplicateObjects: false });
  return `# The share of ${site} in ${spec.name}, written by hpcserve deploy --sites: change the file of the whole instead.\n${text}`;
}
