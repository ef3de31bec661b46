/**
 * The direction of dependencies: processes → libraries → host → spec. `test/repo-rules/dependencies.test.ts` runs
 * dependency-cruiser with these rules and checks that it saw the modules.
 */
import type { IForbiddenRuleType } from 'dependency-cruiser';

export const processes = ['cli', 'control', 'gateway', 'agent'] as const;
export const libraries = ['solver', 'mesh', 'slurm', 'ledger', 'native'] as const;
/** The rooms whose files are the product. */
export const productRooms: readonly string[] = [...processes, ...libraries, 'host', 'spec'];

/** The page runs in a browser: it shares types with the house and none of its programs. */
export const pageRoom = 'web';

/**
 * The floors of `control/`, the lowest first: what stands on one floor may call what stands below it. `''` are the
 * operations at the top of the room (deploy, stop, status, shell), which commands call.
 */
export const controlFloors = [
  ['state'],
  ['runner'],
  ['model-source'],
  ['plan'],
  ['gateway'],
  ['reconcile'],
  ['joined-node', 'pipelines', 'scaler', 'scavenger', 'sites'],
  ['keeper'],
  [''],
] as const;

const all = (rooms: readonly string[]): string => `^(${rooms.join('|')})/`;

/** Files of one folder of `control/`; those at its top for `''`. */
const inControl = (folder: string): string => `^control/${folder ? `${folder}/` : '[^/]+$'}`;

export const dependencyRules: IForbiddenRuleType[] = [
  // `control` runs inside a CLI command, so the CLI may call it; nothing else crosses between processes.
  ...processes.map((room) => ({
    name: `${room}-imports-no-other-process`,
    severity: 'error' as const,
    from: { path: `^${room}/` },
    to: {
      path: all(processes.filter((other) => other !== room && !(room === 'cli' && other === 'control'))),
    },
  })),
  ...libraries.map((room) => ({
    name: `${room}-imports-only-spec`,
    severity: 'error' as const,
    from: { path: `^${room}/` },
    to: { path: all([...processes, ...libraries.filter((other) => other !== room)]) },
  })),
  {
    name: 'host-imports-only-spec',
    severity: 'error',
    from: { path: '^host/' },
    to: { path: all([...processes, ...libraries]) },
  },
  {
    name: 'spec-imports-nothing-of-the-house',
    severity: 'error',
    from: { path: '^spec/' },
    to: { path: all([...processes, ...libraries, 'host']) },
  },
  {
    name: 'web-imports-only-types-of-spec',
    severity: 'error',
    from: { path: `^${pageRoom}/` },
    to: { path: all(productRooms), dependencyTypesNot: ['type-only'] },
  },
  {
    name: 'web-imports-only-spec',
    severity: 'error',
    from: { path: `^${pageRoom}/` },
    to: { path: all(productRooms.filter((room) => room !== 'spec')) },
  },
  {
    name: 'nothing-imports-web',
    severity: 'error',
    from: { path: all([...productRooms, 'bench', '.ci']) },
    to: { path: `^${pageRoom}/` },
  },
  {
    name: 'solver-is-pure',
    comment: 'no I/O, no clock, no randomness but a seed',
    severity: 'error',
    from: { path: '^solver/' },
    to: { dependencyTypes: ['core'] },
  },
  {
    name: 'solver-uses-no-effects',
    severity: 'error',
    from: { path: '^solver/' },
    to: { path: '^host/' },
  },
  // The uppermost floor may call all.
  ...controlFloors.slice(0, -1).flatMap((floor, at) =>
    floor.map((folder) => ({
      name: `control-${folder || 'operations'}-calls-only-what-is-below`,
      severity: 'error' as const,
      from: { path: inControl(folder) },
      to: {
        path: controlFloors
          .slice(at)
          .flat()
          .filter((other) => other !== folder)
          .map(inControl)
          .join('|'),
      },
    })),
  ),
  {
    name: 'product-imports-no-tests',
    severity: 'error',
    from: { path: all(productRooms) },
    to: { path: '^(test|bench|\\.ci)/' },
  },
  { name: 'no-cycles', severity: 'error', from: { pathNot: '^spec/errors/' }, to: { circular: true } },
  {
    name: 'product-uses-no-development-packages',
    severity: 'error',
    from: { path: all(productRooms) },
    to: { dependencyTypes: ['npm-dev'], dependencyTypesNot: ['type-only'] },
  },
];
