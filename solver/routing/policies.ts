import type { RoutingPolicyName } from '../../spec/gateway-settings.ts';
import { byEngine } from './by-engine.ts';
import type { RoutingPolicy } from './candidate.ts';
import { leastLoad } from './least-load.ts';

/** Every policy there is, by the name under which a site config asks for it (`gateway.routing`). */
const policies = {
  'by-engine': byEngine,
  'least-load': leastLoad,
} as const satisfies Record<RoutingPolicyName, (queue_length: number) => RoutingPolicy>;

/** @param queue_length requests that may wait at one replica beyond those it computes */
export function routingPolicy(name: RoutingPolicyName, queue_length: number): RoutingPolicy {
  return policies[name](queue_length);
}
