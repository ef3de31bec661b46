/** What can be seen to be wrong with the models of a specification before anything is submitted, beside their files. */
import { accessSync, constants } from 'node:fs';
import { HpcserveError } from '../../spec/errors/error.ts';
import { plannedName, poolNames } from '../../spec/model-pools.ts';
import type { DeploymentSpec, ModelSpec } from '../../spec/model-yaml.ts';
import { nearest } from '../../spec/nearest.ts';
import { refuseWithoutEffect } from './engine-fields.ts';

/**
 * @param nodeKinds names of the site's node kinds; undefined: those of other sites may be meant
 * @param mediaDomains hosts from which the site lets engines fetch media; undefined: any
 * @throws E_CONFIG_CONFLICT, E_CONFIG_MISSING
 */
export function checkModels(
  spec: DeploymentSpec,
  site: string,
  nodeKinds: readonly string[] | undefined,
  mediaDomains?: readonly string[],
): void {
  refuseDoubleNames(spec);
  for (const model of spec.models) {
    if (nodeKinds) for (const asked of devicesAsked(model)) checkNodeKinds(asked, site, nodeKinds);
    if (mediaDomains) checkMediaDomains(model, site, mediaDomains);
    checkStableReplicas(model);
    checkCommand(model);
    checkFiles(model);
  }
  refuseWithoutEffect(spec.models);
}

/** Clients ask by name: models may share an alias, of which the gateway chooses one, but no model's own name. */
function refuseDoubleNames(spec: DeploymentSpec): void {
  const owner = new Map<string, string>();
  for (const { name } of spec.models) {
    if (owner.has(name))
      throw new HpcserveError('E_CONFIG_CONFLICT', {
        what: `two models of ${spec.name} are called "${name}"`,
        try: 'give each model its own name; an alias they may share',
      });
    owner.set(name, name);
  }
  for (const { name, pools } of spec.models)
    for (const pool of pools ? poolNames : [])
      if (owner.has(`${name}/${pool}`))
        throw new HpcserveError('E_CONFIG_CONFLICT', {
          what: `a model of ${spec.name} is called "${name}/${pool}", and ${name} has a ${pool} pool`,
          because: 'the replicas of both would have the same names',
          try: `give the model "${name}/${pool}" another name`,
        });
  for (const { name, aliases } of spec.models)
    for (const alias of aliases)
      if (alias !== name && owner.has(alias))
        throw new HpcserveError('E_CONFIG_CONFLICT', {
          what: `"${alias}" is an alias of ${name} and the name of another model of ${spec.name}`,
          because: 'requests for a name go to the model of that name alone',
          try: 'give the alias another name',
        });
}

/** Where a model, or each of its pools, is to run, by what model.yaml calls it. */
function devicesAsked({ name, devices, pools }: ModelSpec): Pick<ModelSpec, 'name' | 'devices'>[] {
  const own = poolNames.flatMap((pool) => {
    const asked = pools?.[pool].devices;
    return asked ? [{ name: plannedName(name, pool), devices: asked }] : [];
  });
  return [{ name, devices }, ...own];
}

/** One file may name the kinds of several sites; that none of them is here is a mistake. */
function checkNodeKinds(
  { name, devices }: Pick<ModelSpec, 'name' | 'devices'>,
  site: string,
  nodeKinds: readonly string[],
): void {
  if (devices.node_kinds.length === 0 || devices.node_kinds.some((kind) => nodeKinds.includes(kind))) return;
  const near = nearest(devices.node_kinds[0]!, nodeKinds);
  throw new HpcserveError('E_CONFIG_CONFLICT', {
    what: `${site} has no node kind ${devices.node_kinds.map((kind) => `"${kind}"`).join(' or ')}`,
    because: `devices.node_kinds of ${name} asks for it; the site has ${nodeKinds.join(', ') || 'none'}`,
    try: near ? `did you mean "${near}"?` : 'name one of them, or leave devices.node_kinds out',
  });
}

function checkMediaDomains(
  { name, remote_media }: ModelSpec,
  site: string,
  allowed: readonly string[],
): void {
  const other = remote_media.domains.find((domain) => !allowed.includes(domain));
  if (other === undefined) return;
  throw new HpcserveError('E_CONFIG_CONFLICT', {
    what: `${name} wants to fetch media from ${other}, and ${site} does not allow it`,
    because: `runtime.remote_media_domains of the site config names ${allowed.join(', ') || 'no host'}`,
    try: 'remove it from remote_media.domains, or ask the site to add it',
  });
}

/** What must be stable is part of the replicas there are, and cannot be asked onto scavenger nodes. */
function checkStableReplicas({ name, replicas, min_stable_replicas, tier }: ModelSpec): void {
  if (replicas !== 'auto' && min_stable_replicas > replicas)
    throw new HpcserveError('E_CONFIG_CONFLICT', {
      what: `${name} asks for ${min_stable_replicas} stable replicas, and for ${replicas} in all`,
      because: 'min_stable_replicas counts some of the replicas, not further ones',
      try: `write min_stable_replicas: ${replicas} or less, or more replicas`,
    });
  if (min_stable_replicas > 0 && tier === 'scavenger')
    throw new HpcserveError('E_CONFIG_CONFLICT', {
      what: `${name} asks for ${min_stable_replicas} stable replica(s), and for tier scavenger`,
      because: 'with tier: scavenger every replica runs on nodes that may be preempted',
      try: 'write tier: any, or remove min_stable_replicas',
    });
}

function checkCommand({ name, engine, command }: ModelSpec): void {
  if (engine !== 'command') {
    if (command === undefined) return;
    throw new HpcserveError('E_CONFIG_CONFLICT', {
      what: `${name} has a command, and engine ${engine}`,
      because: 'only engine: command starts it',
      try: 'write engine: command, or remove the command',
    });
  }
  if (command === undefined)
    throw new HpcserveError('E_CONFIG_CONFLICT', {
      what: `${name} has engine: command and no command`,
      try: 'add `command: [program, argument, …]` to the model, with {port} or {socket} where it listens',
    });
  const names = (field: string): boolean => command.some((part) => part.includes(field));
  if (names('{socket}') === names('{port}'))
    throw new HpcserveError('E_CONFIG_CONFLICT', {
      what: `the command of ${name} names ${names('{port}') ? 'both {socket} and {port}' : 'neither {socket} nor {port}'}`,
      because: 'the node agent must know where the server listens',
      try: 'use exactly one of them in `command`',
    });
}

function checkFiles({ name, chat_template, environment_files }: ModelSpec): void {
  const files = [
    ...(chat_template === undefined ? [] : [['chat_template', chat_template] as const]),
    ...environment_files.map((path) => ['environment_files', path] as const),
  ];
  for (const [key, path] of files) {
    try {
      accessSync(path, constants.R_OK);
    } catch (error) {
      throw new HpcserveError('E_CONFIG_MISSING', {
        what: `${key} of ${name} cannot be read: ${path}`,
        because: (error as Error).message,
        try: 'check the path: relative ones start at the YAML file',
        cause: error,
      });
    }
  }
}
