/** The model.yaml of one site's share: that of the whole with fewer replicas, and with what it is a share of. */
import { existsSync, readFileSync } from 'node:fs';
import { dirname, isAbsolute, resolve } from 'node:path';
import { parseDocument, stringify } from 'yaml';
import { kindsAskedAt } from '../../solver/sites/kind-names.ts';
import type { DeploymentSpec, Objective } from '../../spec/model-yaml.ts';
import type { Share, SiteShare } from '../../spec/site-share.ts';

type Mapping = Record<string, unknown>;

/** What a person wrote, without defaults. */
export function readWhole(path: string): Mapping {
  return parseDocument(readFileSync(path, 'utf8')).toJS({ maxAliasCount: 100 }) as Mapping;
}

export interface Shared {
  /** As `readWhole` has it, and the same with defaults. */
  whole: Mapping;
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
  const document = {
    ...rest,
    ...(objective === undefined ? {} : { objective }),
    ...(gpu_hours === undefined ? {} : { budget: { gpu_hours } }),
    models: (whole.models as Mapping[]).flatMap((written, at) => {
      const asked = spec.models[at]!;
      const own = models.find(({ name }) => name === asked.name);
      if (own === undefined) return [];
      const { replicas, min_stable_replicas, scavenger_replicas, request_share } = own;
      const { workload } = asked;
      return {
        ...written,
        replicas,
        min_stable_replicas,
        scavenger: { replicas: scavenger_replicas },
        ...(workload ? { workload: { ...workload, rate_per_s: workload.rate_per_s * request_share } } : {}),
        ...(asked.devices.node_kinds.length > 0
          ? { devices: { ...asked.devices, node_kinds: kindsAskedAt(site, asked, nodeKinds) } }
          : {}),
      };
    }),
    share,
  };
  const text = stringify(document, { aliasDuplicateObjects: false });
  return `# The share of ${site} in ${spec.name}, written by hpcserve deploy --sites: change the file of the whole instead.\n${text}`;
}

/** For a file that lies elsewhere: what lies beside the one that it was made from is named by its whole path. */
export function sourcesFromHere(path: string, text: string): string {
  const document = parseDocument(text);
  const folder = dirname(path);
  const { models } = document.toJS() as {
    models: { source: string; chat_template?: string; environment_files?: string[] }[];
  };
  for (const [at, { source, chat_template, environment_files = [] }] of models.entries()) {
    // What is not beside it is looked for elsewhere: in models_dir, in a cache, under an alias.
    const beside = !isAbsolute(source) && existsSync(resolve(folder, source));
    if (beside) document.setIn(['models', at, 'source'], resolve(folder, source));
    if (chat_template !== undefined)
      document.setIn(['models', at, 'chat_template'], resolve(folder, chat_template));
    for (const [index, file] of environment_files.entries())
      document.setIn(['models', at, 'environment_files', index], resolve(folder, file));
  }
  return document.toString();
}
