/** A view of a dashboard: the query of its address, with the page that is shown and what was chosen on it. */

/** Return the address of a view. */
export function viewUrl(url: string, view: string, theme: 'light' | 'dark'): string {
  const query = new URLSearchParams(view);
  query.set('theme', theme);
  return `${url}?${query.toString()}`;
}

/** Return the title of the page of a view. */
export function viewTitle(view: string): string {
  const page = new URLSearchParams(view).get('page') ?? 'overview';
  return page.charAt(0).toUpperCase() + page.slice(1);
}

/** Return a view without its moment: another cluster has no such moment, nor has another day. */
export function withoutTime(view: string): string {
  const query = new URLSearchParams(view);
  query.delete('until');
  return query.toString();
}
