import { ApiError } from '../apiError';

/** Whether the news are new: `missing` if the server has no extension, `refused` if it lets nobody in. */
export type LinkState = 'connecting' | 'live' | 'reconnecting' | 'missing' | 'refused';

/** Return what a request that has failed says of the server. */
export function stateAfter(error: unknown): LinkState {
  if (error instanceof ApiError) {
    if (error.isMissing) {
      return 'missing';
    }
    if (error.status === 401 || error.status === 403) {
      return 'refused';
    }
  }
  return 'reconnecting';
}
