/** Names that clients ask by, which other deployments of the site have. */
import { HpcserveError } from '../../spec/errors/error.ts';
import type { DeploymentSpec } from '../../spec/model-yaml.ts';

/**
 * A model's own name is asked first, so an alias that is one would never lead anywhere. Deployments may share names of
 * models, which are replicas of each other then, and aliases, of which the gateway chooses one.
 * @param others specifications of the deployments that are to serve beside it
 * @throws E_MODEL_NAME_TAKEN
 */
export function refuseTakenNames(
  spec: Pick<DeploymentSpec, 'name' | 'models'>,
  others: readonly Pick<DeploymentSpec, 'name' | 'models'>[],
): void {
  for (const { name, aliases } of spec.models)
    for (const other of others) {
      const named = other.models.find((model) => model.name !== name && aliases.includes(model.name));
      if (named)
        throw taken(
          `"${named.name}" is to be an alias of ${name}, and a model of ${other.name} has that name`,
          'whoever asks for it would get the model of that name, and never this one',
        );
      const called = other.models.find((model) => model.name !== name && model.aliases.includes(name));
      if (called)
        throw taken(
          `${name} is an alias of ${called.name}, a model of ${other.name}`,
          `with a model of that name, the alias would lead nowhere`,
        );
    }
}

function taken(what: string, because: string): HpcserveError {
  return new HpcserveError('E_MODEL_NAME_TAKEN', { what, because });
}
