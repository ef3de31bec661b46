import { HpcserveError } from '../../spec/errors/error.ts';
import type { OwnNews } from './ring-messages.ts';

/** What people are told of a provider of a fabric that should work. @param way such as `to the stage behind` */
export function fabricNotice(provider: string, way: string, because: string): OwnNews {
  const what = `frames of a pipeline cannot travel by rma (${provider}) ${way}`;
  const notice = new HpcserveError('E_STAGE_FABRIC', { what, because, details: { provider } });
  return { type: 'notice', provider, error: notice.toJSON() };
}
